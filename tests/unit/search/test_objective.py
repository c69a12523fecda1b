"""What a trial's evaluations are worth under each objective."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config.trial import Target
from orchestrator.search.objective import Kind, Objective

DONE, FAILED, DIVERGED = {"status": "completed"}, {"status": "failed"}, {"status": "diverged"}


def evaluations(*values: float | None, metric: str = "val/accuracy") -> list[dict[str, Any]]:
    """One every 100 samples, 10 updates and half a second; None is a metric that was not finite."""
    return [
        {
            "samples_seen": 100 * n,
            "updates": 10 * n,
            "train_seconds": 0.5 * n,
            "metrics": {} if value is None else {metric: value},
        }
        for n, value in enumerate(values, 1)
    ]


def objective(kind: Kind, *, mode: Any = "max", target: float | None = None) -> Objective:
    wanted = None if target is None else Target(metric="val/accuracy", value=target, mode=mode)
    return Objective(kind=kind, metric="val/accuracy", mode=mode, target=wanted)


def test_the_best_is_in_the_metrics_own_direction_and_passes_over_what_is_absent() -> None:
    values = evaluations(0.3, 0.8, None, 0.6)
    assert objective("best_metric", mode="max").score(values, DONE) == 0.8
    assert objective("best_metric", mode="min").score(values, DONE) == 0.3
    assert objective("best_metric").score(evaluations(None), DONE) is None
    assert objective("best_metric").score([], DONE) is None


@pytest.mark.parametrize(
    ("kind", "value"), [("samples_to_target", 200), ("time_to_target", 1.0), ("updates_and_samples", [20, 200])]
)
def test_a_target_counts_where_it_is_first_reached(kind: Kind, value: Any) -> None:
    aim = objective(kind, target=0.75)
    assert aim.score(evaluations(0.3, 0.75, 0.5, 0.9), DONE) == value
    assert aim.score(evaluations(0.3, 0.7), DONE) is None
    assert set(aim.directions) == {"minimize"}


@pytest.mark.parametrize("outcome", [FAILED, DIVERGED])
@pytest.mark.parametrize("kind", ["best_metric", "samples_to_target", "time_to_target", "updates_and_samples"])
def test_a_failed_or_diverged_trial_has_no_value_however_good_it_was(kind: Kind, outcome: dict[str, str]) -> None:
    aim = objective(kind, target=None if kind == "best_metric" else 0.5)
    assert aim.score(evaluations(0.9, 0.99), outcome) is None
