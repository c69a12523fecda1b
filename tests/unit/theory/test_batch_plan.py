"""Splitting a global batch: the product law, and what is said where no split exists."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.batch_plan import BatchPlan, InfeasiblePlan, plan, replan

counts = st.integers(1, 512)
maybe = st.none() | st.integers(1, 64)


@given(global_batch=st.integers(1, 4096), world_size=st.integers(1, 16), micro=maybe, accumulation=maybe, most=maybe)
def test_every_plan_multiplies_and_every_refusal_names_feasible_ones(
    global_batch: int, world_size: int, micro: int | None, accumulation: int | None, most: int | None
) -> None:
    limits: dict[str, Any] = {"micro_batch": micro, "accumulation": accumulation, "micro_batch_max": most}
    try:
        found = plan(global_batch, world_size, **limits)
    except InfeasiblePlan as refusal:
        for near in refusal.nearest:
            assert plan(near.global_batch, world_size, **limits) == near
        nearer = (p.global_batch for p in refusal.nearest)
        low = max((b for b in nearer if b < global_batch), default=0)
        high = min(
            (p.global_batch for p in refusal.nearest if p.global_batch > global_batch), default=global_batch + 40
        )
        for between in range(max(low + 1, global_batch - 40), min(high, global_batch + 40)):
            with pytest.raises(InfeasiblePlan):
                plan(between, world_size, **limits)
        return
    assert found.micro_batch * found.accumulation * found.world_size == found.global_batch == global_batch
    assert found.world_size == world_size
    assert micro in (None, found.micro_batch)
    assert accumulation in (None, found.accumulation)
    assert most is None or found.micro_batch <= most


@given(per_worker=counts, world_size=st.integers(1, 8), most=counts)
def test_free_plan_takes_the_largest_micro_batch_that_divides(per_worker: int, world_size: int, most: int) -> None:
    found = plan(per_worker * world_size, world_size, micro_batch_max=most)
    largest = max(m for m in range(1, min(per_worker, most) + 1) if per_worker % m == 0)
    assert (found.micro_batch, found.per_worker_batch) == (largest, per_worker)


def test_without_a_limit_the_whole_per_worker_batch_is_one_micro_batch() -> None:
    assert plan(96, 4) == BatchPlan(global_batch=96, micro_batch=24, accumulation=1, world_size=4)


@pytest.mark.parametrize(
    ("batch", "world", "limits", "nearest", "rule"),
    [
        (100, 2, {"micro_batch": 16}, [96, 128], "multiple of 32 (micro 16 x world 2)"),
        (10, 4, {"accumulation": 4}, [16], "multiple of 16 (accumulation 4 x world 4)"),
        (10, 3, {}, [9, 12], "multiple of 3 (world 3)"),
        (64, 1, {"micro_batch": 8, "accumulation": 4}, [32], "must be 32 (micro 8 x accumulation 4 x world 1)"),
        (16, 1, {"micro_batch": 8, "accumulation": 4}, [32], "must be 32"),
        (64, 2, {"accumulation": 2, "micro_batch_max": 8}, [32], "at most 32 (micro_batch_max 8)"),
        (64, 2, {"micro_batch": 16, "micro_batch_max": 8}, [], "at most micro_batch_max 8"),
    ],
)
def test_refusal_names_rule_and_nearest(batch: int, world: int, limits: Any, nearest: list[int], rule: str) -> None:
    with pytest.raises(InfeasiblePlan) as caught:
        plan(batch, world, **limits)
    assert [p.global_batch for p in caught.value.nearest] == nearest
    assert rule in caught.value.rule
    assert caught.value.rule in str(caught.value)
    assert all(str(p.global_batch) in str(caught.value) for p in caught.value.nearest)


def test_refusal_survives_pickling() -> None:
    with pytest.raises(InfeasiblePlan) as caught:
        plan(10, 3)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.rule, again.nearest, str(again)) == (caught.value.rule, caught.value.nearest, str(caught.value))


@pytest.mark.parametrize("bad", [0, -1, True, 2.0])
@pytest.mark.parametrize("name", ["global_batch", "world_size", "micro_batch", "accumulation", "micro_batch_max"])
def test_not_a_count_is_refused_by_name(name: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} = "):
        plan(**{"global_batch": 64, "world_size": 2, name: bad})


def test_a_plan_that_does_not_multiply_is_refused() -> None:
    with pytest.raises(ValueError, match="is 16, not the global batch 64"):
        BatchPlan(global_batch=64, micro_batch=8, accumulation=1, world_size=2)


@given(micro=st.integers(1, 32), accumulation=st.integers(1, 8), world=st.integers(1, 8), fewer=st.integers(1, 8))
def test_another_number_of_workers_keeps_the_global_batch_or_is_refused(
    micro: int, accumulation: int, world: int, fewer: int
) -> None:
    total = micro * accumulation * world
    given_plan = BatchPlan(global_batch=total, micro_batch=micro, accumulation=accumulation, world_size=world)
    assert replan(given_plan, world) == given_plan
    if total % fewer:
        with pytest.raises(InfeasiblePlan) as caught:
            replan(given_plan, fewer)
        assert all(near.global_batch % fewer == 0 for near in caught.value.nearest)
        return
    found = replan(given_plan, fewer)
    assert (found.global_batch, found.world_size) == (total, fewer)
    fits = [m for m in range(1, micro + 1) if total // fewer % m == 0]
    assert found.micro_batch == max(fits), "the largest that is known to fit"


@given(micro=st.integers(2, 256), accumulation=st.integers(1, 8), world=st.integers(1, 8))
def test_halving_ends_at_one(micro: int, accumulation: int, world: int) -> None:
    total = micro * accumulation * world
    at = BatchPlan(global_batch=total, micro_batch=micro, accumulation=accumulation, world_size=world)
    tries = 0
    while at.micro_batch > 1:
        smaller = replan(at, world, micro_batch_max=at.micro_batch // 2)
        assert smaller.global_batch == total
        assert smaller.micro_batch <= at.micro_batch // 2
        at, tries = smaller, tries + 1
    assert tries <= micro.bit_length()


def test_a_limit_above_the_plan_does_not_raise_its_micro_batch() -> None:
    given_plan = BatchPlan(global_batch=64, micro_batch=8, accumulation=4, world_size=2)
    assert replan(given_plan, 2, micro_batch_max=64) == given_plan
    with pytest.raises(ValueError, match="micro_batch_max = 0"):
        replan(given_plan, 2, micro_batch_max=0)
