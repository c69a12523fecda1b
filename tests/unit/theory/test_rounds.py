"""Intervals by rounds cover as often as they say, and comparisons with earlier runs alarm as rarely."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.theory.moved import compare_runs
from orchestrator.theory.rounds import ratio, typical


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(1000):
        slow = np.exp(0.5 * rng.standard_normal(4))
        above, below = (slow * m * np.exp(0.05 * rng.standard_normal(4)) for m in (3.0, 1.0))
        found = ratio(above.tolist(), below.tolist())
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 3.0 <= found.high
    assert 930 <= hits <= 970


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [float("nan")]])
def test_rounds_must_be_positive(values: list[float]) -> None:
    with pytest.raises(ValueError, match="rounds must give"):
        typical(values)


@pytest.mark.parametrize("runs", [3, 6])
def test_alarms_with_known_spread_are_as_rare_as_said(runs: int) -> None:
    rng, alarms = np.random.default_rng(runs), 0
    for _ in range(1000):
        days = np.exp(0.2 * rng.standard_normal(runs + 1))
        *before, now = ((day * np.exp(0.05 * rng.standard_normal(3))).tolist() for day in days)
        alarms += compare_runs(before, now, confidence=0.95).verdict != "held"
    assert 25 <= alarms <= 80


def test_a_change_must_be_large_where_the_spread_of_days_is_unknown() -> None:
    assert compare_runs([[1.0, 1.001, 0.999]], [1.05, 1.051, 1.049]).verdict == "held"
    assert compare_runs([[1.0, 1.001, 0.999]], [1.2, 1.201, 1.199]).verdict == "up"
    assert compare_runs([[1.0]], [9.0]).verdict == "held"  # one round each tells no noise
