"""Trials that are handed in and followed directly, without Tune: which of them has news first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray

from orchestrator.config.trial import TrialSpec
from orchestrator.errors import GangError

if TYPE_CHECKING:
    from orchestrator.cluster.pool import Pool

Message = Mapping[str, Any]


class Following:
    """The trials of a pool that somebody waits for, by id."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._asked: dict[Any, str] = {}

    @property
    def trials(self) -> list[str]:
        """Those that were asked of and have not answered yet."""
        return list(self._asked.values())

    def submit(self, trial: str, spec: TrialSpec, info: Mapping[str, Any]) -> None:
        """Hand a trial in. `info` is what its ``trial_started`` event says beside id, spec and key.

        Raises:
            GangError: the process that keeps the record is gone.
        """
        self._pool.submit(trial, spec.to_dict(), {**info, "key": spec.key})

    def ask(self, trial: str, evaluations: Sequence[Message]) -> None:
        """Ask for what comes after these evaluations of a trial: the next one, or its end."""
        after = evaluations[-1]["samples_seen"] if evaluations else -1
        self._asked[self._pool.mailbox.next_message.remote(trial, after)] = trial

    def news(self) -> list[tuple[str, Message]]:
        """Wait for an answer; each with its trial. An end has the keys ``outcome`` and ``over``.

        Raises:
            GangError: no gang is left, or the process that keeps the record is gone.
            OrchestratorError: the record cannot be written any more.
        """
        ready, _ = ray.wait(list(self._asked), num_returns=1)
        found = []
        for reference in ready:
            message = self._pool.answer(reference)
            if "interrupted" in message:
                self._pool.check()
                raise GangError(f"no worker group could be kept: {message['interrupted']}")
            found.append((self._asked.pop(reference), message))
        return found
