"""Tune's scheduler: asks the policies of `race` at every evaluation, and tells the gangs what was decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from orchestrator.config.spec import SweepSpec
from orchestrator.config.trial import Target
from orchestrator.search.objective import Objective
from orchestrator.search.race import Asha, Race, rungs

Cost = Literal["samples_seen", "train_seconds"]
Cancel = Callable[[str, str | None], bool]


def early_stopping(spec: SweepSpec, objective: Objective, *, largest_batch: int, cancel: Cancel) -> EarlyStopping:
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
    cost: Cost = "train_seconds" if objective.kind == "time_to_target" else "samples_seen"
    return EarlyStopping(asha=asha, race=race, target=objective.target, cost=cost, cancel=cancel)


class EarlyStopping(FIFOScheduler):  # type: ignore[misc]
    """First in, first out, with early stopping by samples.

    Args:
        asha: successive halving on the objective's metric, or None.
        race: the race to the target, or None.
        target: what the race is for.
        cost: what the race counts.
        cancel: called with (trial, policy's name) when a trial is stopped, so that its gang learns of it: with
            ``reuse_actors`` a stopped trial's actor is only cached, and tells nobody. It says False if the trial has
            ended by itself meanwhile; Tune then gets that end, or the study would disagree with the record.
    """

    def __init__(
        self,
        *,
        asha: Asha | None = None,
        race: Race | None = None,
        target: Target | None = None,
        cost: Cost = "samples_seen",
        cancel: Cancel,
    ) -> None:
        super().__init__()
        self._asha, self._race, self._target, self._cost, self._cancel = asha, race, target, cost, cancel
        self._verdicts: dict[tuple[str, int], str | None] = {}

    def judge_again(self, trial: str, phase: str, result: dict[str, Any]) -> None:
        """Judge an evaluation that the record holds, in its order: the policies then know what they knew.

        Args:
            result: as `LeasedTrial.step` returned it.
        """
        self._judge(trial, phase, result)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Tune's question after each result."""
        config = trial.config
        policy = None if result.get("done") else self._judge(config["trial"], config["info"]["phase"], result)
        if policy is None or not self._cancel(config["trial"], policy):
            return str(TrialScheduler.CONTINUE)
        return str(TrialScheduler.STOP)

    def __getstate__(self) -> dict[str, Any]:
        """Nothing for Tune's snapshot, which nobody restores: a fresh Tuner runs the remainder."""
        return {}

    def _judge(self, trial: str, phase: str, result: dict[str, Any]) -> str | None:
        """The policy that stops the trial, or None. One answer an evaluation: it may be told again after a crash."""
        at = (trial, result["samples_seen"])
        if at not in self._verdicts:
            self._verdicts[at] = self._ask_policies(trial, result) if phase == "search" else None
        return self._verdicts[at]

    def _ask_policies(self, trial: str, result: dict[str, Any]) -> str | None:
        value = result.get("metric")  # None where it is not finite: such an evaluation reaches no target, and costs
        if self._race and self._target:
            reached = value is not None and self._target.reached(value)
            if self._race.stops(result["global_batch"], result[self._cost], reached):
                return "race"
        if self._asha and value is not None and self._asha.stops(trial, result["samples_seen"], value):
            return "asha"
        return None
