"""Sample order: a pure function of (seed, position)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.training.stream import Stream, ids, windows

SPLITS = [(64, 1, 1), (16, 4, 1), (32, 1, 2), (8, 4, 2), (4, 4, 4)]


@given(st.integers(1, 40), st.integers(0, 2**63), st.integers(0, 200), st.integers(0, 200))
def test_any_slice_is_the_same_samples(size, seed, start, length):
    whole = ids(seed, 0, 400, size)
    assert ids(seed, start, start + length, size).tolist() == whole[start : start + length].tolist()


@given(st.integers(1, 40), st.integers(0, 2**63))
def test_each_epoch_has_each_sample_once(size, seed):
    order = ids(seed, 0, 3 * size, size).reshape(3, size)
    assert (np.sort(order, axis=1) == np.arange(size)).all()


def test_epochs_and_seeds_differ():
    order = ids(0, 0, 3000, 1000).reshape(3, 1000)
    assert (order[0] == order[1]).mean() < 0.02
    assert (order[0] == ids(1, 0, 1000, 1000)).mean() < 0.02


def test_a_batch_may_span_several_epochs():
    counts = np.bincount(ids(5, 3, 3 + 64, 10), minlength=10)
    assert counts.sum() == 64
    assert set(counts.tolist()) <= {5, 6, 7}, "six whole epochs at most, and parts of two"


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_trains_on_the_same_samples_in_each_update(split):
    micro, accumulation, world = split
    plan = BatchPlan(global_batch=64, micro_batch=micro, accumulation=accumulation, world_size=world)
    stream = Stream(7, 100)
    ranks = [list(windows(plan, rank, 0, 64 * 10)) for rank in range(world)]
    for update in range(10):
        own = [w for rank in ranks for w in rank[update * accumulation : (update + 1) * accumulation]]
        seen = np.concatenate([stream.ids(*window) for window in own])
        assert seen.tolist() == ids(7, update * 64, update * 64 + 64, 100).tolist()


def test_a_resume_elsewhere_continues_at_the_next_sample():
    # 1,000 samples, batch 8: stop at update 200, inside the second epoch, and go on with another world size.
    one = BatchPlan(global_batch=8, micro_batch=8, accumulation=1, world_size=1)
    two = BatchPlan(global_batch=8, micro_batch=4, accumulation=1, world_size=2)
    stream, seen = Stream(3, 1000), []
    seen += [stream.ids(*window) for window in windows(one, 0, 0, 1600)]
    for pair in zip(windows(two, 0, 1600, 4000), windows(two, 1, 1600, 4000), strict=True):
        seen += [Stream(3, 1000).ids(*window) for window in pair]
    order = np.concatenate(seen).reshape(4, 1000)
    assert (np.sort(order, axis=1) == np.arange(1000)).all()
    assert order.ravel().tolist() == ids(3, 0, 4000, 1000).tolist()


def test_order_is_pinned():
    assert ids(0, 0, 8, 8).tolist() == [4, 1, 6, 2, 5, 7, 3, 0]


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="at least 1 sample"):
        Stream(0, 0)
