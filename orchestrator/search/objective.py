"""What a sweep optimises, as values of a finished trial: pure functions of its evaluations and outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.config.trial import Mode, Target

Kind = Literal["best_metric", "samples_to_target", "time_to_target", "updates_and_samples"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One of four objectives.

    ``best_metric``: the best value of `metric` among the evaluations up to the budget, in the metric's own direction.
    ``samples_to_target``, ``time_to_target`` (training seconds, evaluation not counted): where the first evaluation at
    the target stands; less is better. ``updates_and_samples``: both counts at once, a Pareto front.
    """

    kind: Kind
    metric: str
    mode: Mode
    target: Target | None = None

    @property
    def directions(self) -> tuple[Literal["minimize", "maximize"], ...]:
        """Optuna's direction of each value."""
        if self.kind == "best_metric":
            return ("minimize",) if self.mode == "min" else ("maximize",)
        return ("minimize", "minimize") if self.kind == "updates_and_samples" else ("minimize",)

    def score(self, evaluations: Sequence[Mapping[str, Any]], outcome: Mapping[str, Any]) -> Any:
        """The value (a list of two for ``updates_and_samples``), or None: no evaluation, target missed, or not finite.

        Args:
            evaluations: ``Evaluation`` dicts by samples seen.
            outcome: ``Outcome`` dict; a failed or diverged trial has no value (law 7).
        """
        if outcome["status"] in ("failed", "diverged"):
            return None
        if self.kind == "best_metric":
            values = [e["metrics"][self.metric] for e in evaluations if self.metric in e["metrics"]]
            return (min if self.mode == "min" else max)(values) if values else None
        hit = self.first_hit(evaluations)
        if hit is None:
            return None
        if self.kind == "time_to_target":
            return hit["train_seconds"]
        return hit["samples_seen"] if self.kind == "samples_to_target" else [hit["updates"], hit["samples_seen"]]

    def first_hit(self, evaluations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """The first evaluation at the target."""
        if self.target is None:
            return None
        for evaluation in evaluations:
            value = evaluation["metrics"].get(self.target.metric)
            if value is not None and self.target.reached(value):
                return evaluation
        return None
