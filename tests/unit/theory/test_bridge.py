"""The efficient batch and the batch of the best quality, and what joins them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.bridge import bridge
from orchestrator.theory.critical_batch import Estimate
from orchestrator.theory.doubling import samples_growth
from orchestrator.theory.geometry import Geometry

CRITICAL = Estimate(value=500.0, low=400.0, high=650.0)


def test_the_same_batch_needs_nothing() -> None:
    found = bridge(Geometry(micro_batch=32, world_size=2), 64, CRITICAL)
    assert (found.by, found.answer) == ("same", "they are the same: 64 = micro 32 x accumulation 1 x world 2")


def test_accumulation_reaches_a_larger_batch_or_says_why_not() -> None:
    found = bridge(Geometry(micro_batch=32, world_size=2), 96, CRITICAL)
    assert found.by == "accumulation"
    assert found.geometry == Geometry(micro_batch=24, accumulation=2, world_size=2)
    assert "24 is the largest micro batch up to 32 that divides it" in found.answer
    odd = bridge(Geometry(micro_batch=32, world_size=2), 97, CRITICAL)
    assert odd.geometry is None
    assert "Nearest feasible: 96" in odd.answer


def test_a_smaller_batch_drops_accumulation_or_workers_first() -> None:
    accumulated = bridge(Geometry(micro_batch=32, accumulation=4, world_size=2), 64, CRITICAL)
    assert (accumulated.by, accumulated.geometry) == ("accumulation", Geometry(micro_batch=32, world_size=2))
    fewer = bridge(Geometry(micro_batch=32, world_size=8, nodes=4), 64, CRITICAL)
    assert (fewer.by, fewer.geometry) == ("fewer workers", Geometry(micro_batch=32, world_size=2, nodes=2))
    between = bridge(Geometry(micro_batch=32, accumulation=4, world_size=2), 192, CRITICAL)
    assert (between.by, between.geometry) == (
        "accumulation",
        Geometry(micro_batch=32, accumulation=3, world_size=2),
    )


def test_a_batch_far_below_the_critical_one_costs_little() -> None:
    found = bridge(Geometry(micro_batch=64), 32, CRITICAL)
    assert found.by == "learning rate"
    assert found.samples.value == pytest.approx(564 / 532)
    assert "at most 7 % more samples" in found.answer
    unknown = bridge(Geometry(micro_batch=64), 32, Estimate())
    assert unknown.by == "nothing"
    assert "is not determined" in unknown.answer


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 8), st.integers(1, 5000))
def test_what_is_run_is_one_of_the_two_batches(micro: int, accumulation: int, world: int, quality: int) -> None:
    efficient = Geometry(micro_batch=micro, accumulation=accumulation, world_size=world)
    found = bridge(efficient, quality, CRITICAL)
    assert (found.geometry is None) == (found.by == "nothing")
    if found.geometry is not None:
        at = efficient.global_batch if found.by == "learning rate" else quality
        assert found.geometry.global_batch == at
        assert found.geometry.world_size <= world
        assert found.geometry.micro_batch <= micro


def test_growth_is_of_a_larger_batch() -> None:
    with pytest.raises(ValueError, match="the second batch must be the larger"):
        samples_growth(8, 8, CRITICAL)
