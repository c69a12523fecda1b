"""The learning rate's course and the evaluation points are functions of samples seen alone."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.schedules import DECAYS, count_evaluations, crossed, evaluation_points, lr_factor

shares = st.floats(0, 1)


def test_linear_decay_is_half_way_at_half_time_and_zero_only_at_the_end() -> None:
    factors = [lr_factor(64 * i, 64, budget_samples=6400, decay="linear") for i in range(101)]
    assert factors[50] == 0.5
    assert factors[100] == 0.0
    assert min(factors[:100]) == pytest.approx(0.01)


def test_warmup_starts_above_zero_and_its_last_update_is_at_the_peak() -> None:
    run: dict[str, Any] = {"budget_samples": 1000, "warmup_samples": 100, "decay": "linear", "final": 0.1}
    assert [lr_factor(s, 25, **run) for s in (0, 25, 50, 75, 100)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert lr_factor(550, 25, **run) == pytest.approx(0.55)
    assert lr_factor(1000, 25, **run) == 0.1


def test_cosine_has_its_textbook_values() -> None:
    values = [lr_factor(s, 1, budget_samples=400, decay="cosine", final=0.2) for s in (0, 100, 200, 300, 400)]
    assert values == pytest.approx([1.0, 0.2 + 0.4 * (1 + math.sqrt(0.5)), 0.6, 0.2 + 0.4 * (1 - math.sqrt(0.5)), 0.2])


@pytest.mark.parametrize("decay", DECAYS)
@given(data=st.data(), budget=st.integers(1, 10**6), batch=st.integers(1, 10**4), warm=shares, final=shares)
def test_factor_stays_in_range_rises_in_warmup_and_falls_after(
    decay: str, data: st.DataObject, budget: int, batch: int, warm: float, final: float
) -> None:
    run: dict[str, Any] = {
        "budget_samples": budget,
        "warmup_samples": int(warm * budget),
        "decay": decay,
        "final": final,
    }
    seen = data.draw(st.integers(0, budget))
    here, later = (lr_factor(s, batch, **run) for s in (seen, seen + batch))
    assert 0.0 <= here <= 1.0
    assert (
        lr_factor(budget, batch, **run)
        == lr_factor(budget + batch, batch, **run)
        == (1.0 if decay == "none" else final)
    )
    if seen + batch < run["warmup_samples"]:
        assert 0.0 < here <= later
    elif seen >= run["warmup_samples"]:
        assert later <= here + 1e-15
        assert here >= (0.0 if decay == "none" else final) - 1e-15


def test_the_updates_that_touch_the_end_of_warmup_are_at_the_peak() -> None:
    run: dict[str, Any] = {"budget_samples": 1000, "warmup_samples": 100, "decay": "cosine"}
    assert lr_factor(96, 32, **run) == 1.0
    assert lr_factor(0, 512, **run) == 1.0


def test_a_warmup_over_the_whole_budget_never_divides_by_zero() -> None:
    run: dict[str, Any] = {"budget_samples": 100, "warmup_samples": 100, "decay": "linear"}
    assert [lr_factor(s, 50, **run) for s in (0, 50, 100)] == [0.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples_seen": -1}, "samples_seen = -1"),
        ({"global_batch": 0}, "global_batch = 0"),
        ({"budget_samples": 0}, "budget_samples = 0"),
        ({"warmup_samples": 101}, "warmup_samples = 101"),
        ({"warmup_samples": -1}, "warmup_samples = -1"),
        ({"decay": "step"}, "decay = 'step': must be one of none, linear, cosine"),
        ({"final": 1.1}, "final = 1.1"),
        ({"final": math.nan}, "final = nan"),
    ],
)
def test_lr_factor_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lr_factor(**{"samples_seen": 0, "global_batch": 10, "budget_samples": 100, **change})


def test_evaluations_line_up_with_multiples_of_samples() -> None:
    assert evaluation_points(64, 4032, 1000) == [1024, 2048, 3008, 4032]
    assert [point // 64 for point in evaluation_points(64, 4032, 1000)] == [16, 32, 47, 63]
    assert evaluation_points(4096, 8192, 1000) == [4096, 8192]
    assert evaluation_points(64, 1000, 5000) == [1024]


@given(batch=st.integers(1, 500), budget=st.integers(1, 5000), every=st.integers(1, 2000))
def test_points_are_the_updates_that_cross_and_the_last(batch: int, budget: int, every: int) -> None:
    last = -(-budget // batch) * batch
    walked = [s + batch for s in range(0, last, batch) if crossed(s, s + batch, every) or s + batch == last]
    assert evaluation_points(batch, budget, every) == walked
    assert count_evaluations(batch, budget, every) == len(walked)


@given(batch=st.integers(1, 100), every=st.integers(1, 500), growth=st.sampled_from([0.01, 0.03, 0.1]))
def test_marks_that_grow_apart_are_as_dense_everywhere(batch: int, every: int, growth: float) -> None:
    updates = range(0, 40_000, batch)
    points = [s + batch for s in updates if crossed(s, s + batch, every, growth)]
    for before, after in itertools.pairwise([0, *points]):
        assert after - before <= max(every, growth * before) + 2 * batch
    assert len(points) <= 2 / growth + math.log(40_000) / math.log1p(growth / 2)


def test_without_growth_the_marks_are_multiples() -> None:
    for every in (1, 7, 100):
        assert all(crossed(s, s + 10, every, 0.0) == crossed(s, s + 10, every) for s in range(0, 1000, 10))


@pytest.mark.parametrize("arguments", [(0, 64, 0), (64, 0, 10), (-64, 0, 10), (0, 64, 10, 1.5), (0, 64, 10, -0.1)])
def test_crossed_refuses(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="every >= 1"):
        crossed(*arguments)


@pytest.mark.parametrize("name", ["global_batch", "budget_samples", "every"])
def test_evaluation_points_refuse(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = 0"):
        evaluation_points(**{"global_batch": 64, "budget_samples": 1000, "every": 100, name: 0})
