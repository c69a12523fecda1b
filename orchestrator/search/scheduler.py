"""Tune's scheduler: asks the policies of `race` at every evaluation, and tells the gangs what was decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from orchestrator.config.spec import SweepSpec
from orchestrator.config.trial import Target
from orchestrator.search.objective import Objective
from orchestrator.search.race import Asha, Race, rungs


def early_stopping(
    spec: SweepSpec, objective: Objective, *, largest_batch: int, cancel: Callable[[str, str], None]
) -> EarlyStopping:
    """The scheduler that a spec asks for; its rungs are such that every batch size meets each of them."""
    search, budget = spec.search, spec.budget
    asha = None
    if "asha" in search.early_stopping:
        marks = rungs(
            lowest_samples=max(largest_batch, search.lowest_rung or 0),
            budget_samples=budget.samples,
            eval_every_samples=budget.eval_every_samples,
            reduction=search.reduction,
        )
        asha = Asha(rungs=marks, reduction=search.reduction, mode=objective.mode)
    race = Race() if "race" in search.early_stopping else None
    return EarlyStopping(asha=asha, race=race, target=objective.target, cancel=cancel)


class EarlyStopping(FIFOScheduler):  # type: ignore[misc]
    """First in, first out, with early stopping by samples.

    Args:
        asha: successive halving on the objective's metric, or None.
        race: the race for samples-to-target, or None.
        target: what the race is for.
        cancel: called with (trial, policy's name) when a trial is stopped, so that its gang learns of it: with
            ``reuse_actors`` a stopped trial's actor is only cached, and tells nobody.
    """

    def __init__(
        self,
        *,
        asha: Asha | None = None,
        race: Race | None = None,
        target: Target | None = None,
        cancel: Callable[[str, str], None],
    ) -> None:
        super().__init__()
        self._asha, self._race, self._target, self._cancel = asha, race, target, cancel

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Tune's question after each result."""
        policy = None if result.get("done") else self._judge(trial.config, result)
        if policy is None:
            return str(TrialScheduler.CONTINUE)
        self._cancel(trial.config["trial"], policy)
        return str(TrialScheduler.STOP)

    def __getstate__(self) -> dict[str, Any]:
        """Nothing for Tune's snapshot, which nobody restores: a fresh Tuner runs the remainder."""
        return {}

    def _judge(self, config: dict[str, Any], result: dict[str, Any]) -> str | None:
        value, samples = result.get("metric"), result["samples_seen"]
        if value is None or config["info"]["phase"] != "search":
            return None
        if (
            self._race
            and self._target
            and self._race.stops(result["global_batch"], samples, self._target.reached(value))
        ):
            return "race"
        if self._asha and self._asha.stops(config["trial"], samples, value):
            return "asha"
        return None
