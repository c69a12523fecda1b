"""Medians of timings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from orchestrator.theory.medians import median_of


@pytest.mark.parametrize("n", [6, 9, 15, 40])
def test_the_interval_covers_the_median_of_a_skewed_distribution(n: int) -> None:
    rng = np.random.default_rng(n)
    rounds, hits = 2000, 0
    for _ in range(rounds):
        found = median_of(rng.exponential(size=n).tolist())
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= np.log(2) <= found.high
    assert hits / rounds >= 0.94


@given(st.integers(1, 60), st.floats(0.5, 0.99))
def test_the_ends_are_the_innermost_that_hold(n: int, confidence: float) -> None:
    found = median_of([float(i) for i in range(1, n + 1)], confidence=confidence)
    k = 0 if found.low is None else int(found.low)
    tail = (1 - confidence) / 2
    assert k == 0 or stats.binom.cdf(k - 1, n, 0.5) <= tail * (1 + 1e-9)
    assert stats.binom.cdf(k, n, 0.5) > tail * (1 - 1e-9) or 2 * (k + 1) > n
    if k:
        assert found.high == n + 1 - k


def test_what_has_no_median_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one value, all of them finite"):
        median_of([])
    with pytest.raises(ValueError, match="at least one value, all of them finite"):
        median_of([1.0, float("nan")])
