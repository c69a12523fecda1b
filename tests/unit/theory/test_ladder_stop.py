"""When a run of a study stops: laws on curves whose crossing is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.ladder_stop import beyond, hopeless, trend
from orchestrator.theory.local_parabola import Curve


def falling(crossing: float, power: float, end: float, every: float, sign: float = 1.0) -> Curve:
    """(crossing / t)^power, which is 1 at the crossing."""
    t = np.arange(0.0, end + every / 2, every)
    return Curve(samples=t, values=sign * ((1.02 * crossing) / (t + 0.02 * crossing)) ** power)


@given(
    crossing=st.floats(100.0, 1e5),
    power=st.floats(0.2, 1.5),
    overshoot=st.floats(1.25, 2.0),
    points=st.integers(30, 100),
    mode=st.sampled_from(["min", "max"]),
)
def test_a_run_stops_where_it_is_far_enough_past_the_target(crossing, power, overshoot, points, mode) -> None:  # type: ignore[no-untyped-def]
    sign = 1.0 if mode == "min" else -1.0
    every = crossing / points
    stops = [
        k
        for k in range(1, 4 * points)
        if beyond(falling(crossing, power, k * every, every, sign), sign, mode, overshoot)
    ]
    assert stops[0] * every == pytest.approx(overshoot * crossing, rel=0.02, abs=1.5 * every)
    assert stops == list(range(stops[0], 4 * points))


def test_one_lucky_evaluation_ends_nothing() -> None:
    curve = falling(1000.0, 0.7, 800.0, 20.0)
    curve.values[20] = 0.9
    assert not beyond(curve, 1.0, "min", 1.5)


def test_a_run_goes_to_the_least_that_was_asked() -> None:
    curve = falling(1000.0, 0.7, 1600.0, 20.0)
    assert beyond(curve, 1.0, "min", 1.5)
    assert beyond(curve, 1.0, "min", 1.5, 1600.0)
    assert not beyond(curve, 1.0, "min", 1.5, 1601.0)


def test_a_target_met_at_sample_0_ends_at_once() -> None:
    assert beyond(Curve(samples=np.zeros(1), values=np.ones(1)), 1.0, "min", 1.5, 1e9)


def test_an_overshoot_that_no_crossing_can_be_fitted_from_is_refused() -> None:
    with pytest.raises(ValueError, match=r"overshoot = 1.0: must be from 1.15 to 3.0"):
        beyond(falling(100.0, 1.0, 10.0, 1.0), 1.0, "min", 1.0)


@given(
    crossing=st.floats(100.0, 1e5),
    worse=st.floats(0.5, 1.1),
    power=st.floats(0.2, 1.5),
    points=st.integers(30, 100),
)
def test_what_may_win_is_never_raced(crossing, worse, power, points) -> None:  # type: ignore[no-untyped-def]
    every = crossing / points
    for k in range(1, 2 * points):
        curve = falling(worse * crossing, power, k * every, every)
        assert not hopeless(curve, 1.0, "min", crossing, 0.0, math.ceil(3 * crossing))


@given(factor=st.floats(1.3, 100.0), power=st.floats(0.2, 1.5), se=st.floats(0.0, 0.1))
def test_what_cannot_win_ends_soon_after_the_best(factor, power, se) -> None:  # type: ignore[no-untyped-def]
    stops = [
        k
        for k in range(1, 200)
        if hopeless(falling(factor * 100.0, power, 2.0 * k, 2.0), 1.0, "min", 100.0, se, 10_000)
    ]
    assert 50.0 <= 2.0 * stops[0] <= 100.0 * math.exp(max(2 * se, 0.15)) + 2.0


def test_without_a_rival_only_the_budget_is_without_hope() -> None:
    rests = Curve(samples=np.arange(0.0, 600.0, 10.0), values=1.5 + np.exp(-np.arange(0.0, 600.0, 10.0) / 30))
    assert hopeless(rests, 1.0, "min", math.inf, 0.0, 1000)
    assert not hopeless(rests, 1.0, "min", math.inf, 0.0, 10_000)
    assert not hopeless(falling(900.0, 0.7, 600.0, 10.0), 1.0, "min", math.inf, 0.0, 1000)


def test_what_is_not_finite_is_without_hope() -> None:
    assert hopeless(Curve(samples=np.arange(2.0), values=np.array([1.0, math.nan])), 0.5, "min", 10.0, 0.1, 100)


def test_a_curve_at_rest_is_told_from_a_slow_one() -> None:
    t = np.arange(0.0, 1000.0, 10.0)
    noise = 0.01 * np.random.default_rng(0).normal(size=len(t))
    rests = trend(Curve(samples=t, values=1.5 + 5 * np.exp(-t / 50) + noise), 1.0, "min")
    slow = trend(Curve(samples=t, values=6.5 - t / 2000 + noise), 1.0, "min")
    assert rests is not None
    assert rests.flat
    assert slow is not None
    assert not slow.flat
    assert slow.soonest < slow.crossing == pytest.approx(11_000, rel=0.1)
    assert trend(Curve(samples=t[:5], values=t[:5]), 1.0, "min") is None
