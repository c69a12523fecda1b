"""The Tune trial: it trains nothing itself. It hands a trial spec to the gangs and returns their evaluations."""

from __future__ import annotations

from typing import Any

import ray
from ray.tune import Trainable


class LeasedTrial(Trainable):  # type: ignore[misc]
    """A light Tune trial; ``step`` is the trial's next evaluation.

    Config: ``trial`` (id), ``spec`` (`TrialSpec` dict), ``info``, and by ``tune.with_parameters`` the mailbox and the
    objective's metric. Results: ``samples_seen``, ``updates``, ``train_seconds``, ``metric`` (the objective's metric or
    None), ``global_batch``; the last one adds ``done``, ``status``, ``value``, and ``over`` if no further trial can be
    trained. A failed trial ends like any other, with its status, so that its actor is reused; one that is left to
    whoever takes the sweep on ends as ``interrupted``. An actor that takes the place of one that died begins with the
    trial's first evaluation again: whoever judges them has to know those it has judged.
    """

    def setup(self, config: dict[str, Any], mailbox: Any = None, metric: str = "") -> None:
        """Begin the first trial of this actor."""
        self._mailbox, self._metric = mailbox, metric
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin another trial in this actor."""
        self.config = new_config
        self._last: dict[str, Any] = {"samples_seen": 0, "updates": 0, "train_seconds": 0.0, "metric": None}
        self._read_to = -1
        self._batch = new_config["spec"]["plan"]["global_batch"]
        ray.get(self._mailbox.submit.remote(new_config["trial"], new_config["spec"], new_config["info"]))
        return True

    def step(self) -> dict[str, Any]:
        """Wait for the trial's next evaluation, or for its end."""
        message = ray.get(self._mailbox.next_message.remote(self.config["trial"], self._read_to))
        if "over" in message:
            status = message["outcome"]["status"] if "outcome" in message else "interrupted"
            end = {"done": True, "status": status, "value": message.get("value"), "over": message["over"]}
            return {**self._last, "global_batch": self._batch, **end}
        self._read_to = message["samples_seen"]
        self._last = {
            "samples_seen": message["samples_seen"],
            "updates": message["updates"],
            "train_seconds": message["train_seconds"],
            "metric": message["metrics"].get(self._metric),
        }
        return {**self._last, "global_batch": self._batch, "done": False}
