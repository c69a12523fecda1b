"""The scaling check on simulated arms: coverage of its intervals, how often it is wrong, and what it refuses."""

from __future__ import annotations

import functools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.scaling import Arm, Comparison, scaling_check

CHECKS = 400
SEEDS = 6


def arm(workers: int, values: object) -> Arm:
    return Arm(workers=workers, global_batch=32 * workers, values=tuple(np.asarray(values, dtype=float).tolist()))


def simulated(true_loss: float, correlation: float, seed: int) -> tuple[Arm, Arm]:
    """Arms of unit spread between seeds; the second is worse by `true_loss`."""
    rng = np.random.default_rng([seed, int(10 * true_loss), int(10 * correlation)])
    one, other = rng.standard_normal((2, SEEDS))
    return arm(1, one), arm(8, true_loss + correlation * one + math.sqrt(1 - correlation**2) * other)


@functools.cache
def checks(true_loss: float, correlation: float, tolerance: float | None) -> list[Comparison]:
    found = [
        scaling_check(simulated(true_loss, correlation, n), mode="min", tolerance=tolerance) for n in range(CHECKS)
    ]
    return [check.rows[0] for check in found]


@pytest.mark.parametrize("correlation", [0.0, 0.7])
@pytest.mark.parametrize("true_loss", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("tolerance", [1.0, None])
def test_intervals_hold_the_truth_as_often_as_they_say(
    true_loss: float, correlation: float, tolerance: float | None
) -> None:
    rows = checks(true_loss, correlation, tolerance)
    least = 0.95 - 3 * math.sqrt(0.95 * 0.05 / CHECKS)
    assert np.mean([row.lost.low <= true_loss <= row.lost.high for row in rows]) > least
    assert np.mean([row.beyond.low <= true_loss - 1.0 <= row.beyond.high for row in rows]) > least


@pytest.mark.parametrize("correlation", [0.0, 0.7])
@pytest.mark.parametrize("tolerance", [1.0, None])
@pytest.mark.parametrize(
    ("true_loss", "wrong"),
    [(0.0, {"gained", "lost"}), (0.9, {"gained", "lost"}), (1.0, {"gained", "held"}), (2.0, {"gained", "held"})],
)
def test_at_most_one_verdict_in_twenty_is_wrong(
    true_loss: float, wrong: set[str], correlation: float, tolerance: float | None
) -> None:
    verdicts = Counter(row.verdict for row in checks(true_loss, correlation, tolerance))
    assert sum(verdicts[one] for one in wrong) / CHECKS <= 0.05


def test_several_arms_are_wrong_together_as_rarely_as_one() -> None:
    false = 0
    for n in range(CHECKS):
        rng = np.random.default_rng(n)
        arms = [arm(workers, rng.standard_normal(8)) for workers in (1, 2, 4, 8, 16)]
        check = scaling_check(arms, mode="min")
        assert check.confidence == pytest.approx(1 - 0.05 / 4)
        false += any(row.verdict in ("gained", "lost") for row in check.rows)
    assert false / CHECKS <= 0.05


def test_as_many_seeds_as_are_advised_give_a_verdict() -> None:
    row = checks(0.0, 0.7, 1.0)[0]
    untold = [one for one in checks(0.0, 0.0, 1.0) if one.verdict == "not told apart" and one.seeds_needed]
    assert untold
    assert all(one.seeds_needed > SEEDS for one in untold)
    assert row.verdict == "held"
    assert row.seeds_needed is None
    rng = np.random.default_rng(3)
    needed = scaling_check([arm(1, [0.0, 1.0, -1.0, 0.0]), arm(2, [0.9, -0.9, 0.1, 0.0])], mode="min").rows[0]
    assert needed.seeds_needed is not None
    sd = float(np.std([0.9, -1.9, 1.1, 0.0], ddof=1))
    verdicts = Counter[str]()
    for _ in range(200):
        base = math.sqrt(2 / 3) * rng.standard_normal(needed.seeds_needed)
        differences = needed.lost.value + sd * rng.standard_normal(needed.seeds_needed)
        verdicts[scaling_check([arm(1, base), arm(2, base + differences)], mode="min").rows[0].verdict] += 1
    assert 0.7 < verdicts["held"] / 200 < 0.95


@given(
    st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=2, max_size=6),
    st.floats(0.01, 10),
    st.floats(-100, 100),
)
def test_both_directions_and_a_shift_of_all_values_give_the_same_verdict(
    pairs: list[tuple[float, float]], tolerance: float, shift: float
) -> None:
    one, many = (np.array(values) for values in zip(*pairs, strict=True))
    down = scaling_check([arm(1, one), arm(4, many)], mode="min", tolerance=tolerance).rows[0]
    up = scaling_check([arm(4, -many), arm(1, -one)], mode="max", tolerance=tolerance).rows[0]
    assert (up.verdict, up.lost) == (down.verdict, down.lost)
    moved = scaling_check([arm(1, one + shift), arm(4, many + shift)], mode="min", tolerance=tolerance).rows[0]
    assert moved.lost.value == pytest.approx(down.lost.value, abs=1e-10)


def test_an_arm_that_diverged_has_a_verdict_and_no_number() -> None:
    sound = [0.5, 0.6, 0.55]
    check = scaling_check([arm(1, sound), arm(2, sound), arm(4, [0.5, math.nan, math.inf])], mode="min", tolerance=1.0)
    two, four = check.rows
    assert (two.verdict, four.verdict, four.arm.diverged) == ("held", "diverged", 2)
    assert (four.lost.value, four.beyond.high, four.seeds_needed) == (None, None, None)
    assert check.holds_up_to == 2


def test_a_first_arm_of_almost_no_spread_is_compared_like_any_other() -> None:
    row = scaling_check([arm(1, [0.0, 1e-158]), arm(4, [0.0, 1.0])], mode="min", tolerance=1.0).rows[0]
    assert row.verdict == "not told apart"
    assert row.scatter is not None
    assert row.scatter > 1e150


def test_an_arm_that_blows_up_is_lost_though_no_mean_tells() -> None:
    rng = np.random.default_rng(0)
    sound = rng.standard_normal(12)
    row = scaling_check([arm(1, sound), arm(8, 10.0 ** rng.uniform(1, 20, 12))], mode="min").rows[0]
    assert row.lost.low is not None
    assert row.lost.low < 0 < row.lost.high, "no interval tells"
    assert row.verdict == "lost"
    assert row.scatter > 1e10
    few = scaling_check([arm(1, sound[:5]), arm(8, 10.0 ** rng.uniform(1, 20, 5))], mode="min").rows[0]
    assert (few.verdict, few.scatter is not None) == ("not told apart", True)
    assert scaling_check([arm(1, sound), arm(8, sound * 1e200)], mode="min").rows[0].verdict == "diverged"


def test_an_unstable_arm_is_rarely_wrong() -> None:
    verdicts = Counter[str]()
    for n in range(CHECKS):
        rng = np.random.default_rng(n)
        check = scaling_check([arm(1, rng.standard_normal(8)), arm(8, 1.0 + 8 * rng.standard_normal(8))], mode="min")
        verdicts[check.rows[0].verdict] += 1
    assert verdicts["lost"] / CHECKS <= 0.05
    assert (verdicts["gained"] + verdicts["held"]) / CHECKS <= 0.05


def test_without_a_sound_base_nothing_is_told() -> None:
    check = scaling_check([arm(1, [0.5, math.nan]), arm(2, [0.5, 0.5])], mode="min")
    assert check.rows[0].verdict == "not told apart"
    assert check.tolerance.value is None
    assert check.holds_up_to is None


def test_seeds_that_make_no_difference_are_no_tolerance() -> None:
    same = scaling_check([arm(1, [0.5, 0.5]), arm(2, [0.6, 0.6])], mode="min")
    assert (same.rows[0].verdict, same.tolerance.value, same.rows[0].seeds_needed) == ("not told apart", None, None)
    assert scaling_check([arm(1, [0.5, 0.5]), arm(2, [0.6, 0.6])], mode="min", tolerance=0.05).rows[0].verdict == "lost"


@pytest.mark.parametrize(
    ("arms", "options"),
    [
        ([arm(1, [0.0, 1.0])], {}),
        ([arm(1, [0.0, 1.0]), arm(1, [0.0, 1.0])], {}),
        ([arm(1, [0.0]), arm(2, [0.0])], {}),
        ([arm(1, [0.0, 1.0]), arm(2, [0.0, 1.0, 2.0])], {}),
        ([arm(1, [0.0, 1.0]), arm(2, [0.0, 1.0])], {"mode": "least"}),
        ([arm(1, [0.0, 1.0]), arm(2, [0.0, 1.0])], {"tolerance": 0.0}),
        ([arm(1, [0.0, 1.0]), arm(2, [0.0, 1.0])], {"confidence": 1.0}),
    ],
)
def test_what_cannot_be_compared_is_refused(arms: list[Arm], options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"arms|mode|tolerance|confidence"):
        scaling_check(arms, **{"mode": "min", **options})
