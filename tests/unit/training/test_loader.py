"""Batches in process and from loader processes: same samples, same randomness, and processes that stay."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from augmented import Augmented, Deadly, Fetched, Short

from orchestrator.config.trial import LoaderSpec
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.training.loader import open_loader
from orchestrator.training.requests import evaluation_requests, training_requests
from orchestrator.training.stream import Stream, windows
from orchestrator.training.workers import close_pools, worker_pool

HERE, THERE = LoaderSpec(), LoaderSpec(workers=2)


@pytest.fixture(scope="module", autouse=True)
def _end_loader_processes():
    yield
    close_pools()


def batches(data, loader, *, split=(8, 1, 1), rank=0, seed=3, stop=120, start=0, key="test"):
    micro, accumulation, world = split
    total = micro * accumulation * world
    plan = BatchPlan(global_batch=total, micro_batch=micro, accumulation=accumulation, world_size=world)
    requests = training_requests(Stream(seed, len(data)), windows(plan, rank, start, stop))
    return list(open_loader(data, requests, loader, key=f"{key} {type(data).__name__}"))


def joined(found, name):
    return torch.cat([batch[name] for batch in found]).tolist()


@pytest.mark.parametrize("data", [Augmented(), Fetched()], ids=["plain", "fetched"])
def test_workers_and_process_give_the_same(data):
    here, there = batches(data, HERE), batches(data, THERE)
    assert joined(here, "index") == joined(there, "index")
    assert joined(here, "draws") == joined(there, "draws")
    assert set(joined(here, "pid")) == {os.getpid()}
    assert len(set(joined(there, "pid"))) == 2
    assert os.getpid() not in joined(there, "pid")


@pytest.mark.parametrize("data", [Augmented(), Fetched()], ids=["plain", "fetched"])
def test_augmentation_depends_on_seed_and_position_only(data):
    whole = joined(batches(data, HERE, split=(8, 1, 1), stop=64), "draws")
    split = [
        joined(batches(data, HERE, split=(2, 2, 2), rank=rank, start=s, stop=s + 8), "draws")
        for s in range(0, 64, 8)
        for rank in range(2)
    ]
    assert [row for rows in split for row in rows] == whole
    assert len({tuple(row) for row in whole}) == 64, "no two samples draw alike, also in the second epoch"
    assert joined(batches(data, HERE, seed=4, stop=64), "draws") != whole
    resumed = joined(batches(data, HERE, start=32, stop=64), "draws")
    assert resumed == whole[32:]


def test_global_generators_come_back():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    batches(Augmented(), HERE)
    batches(Augmented(), THERE)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]


def test_processes_outlive_a_trial_that_stops_in_the_middle():
    data = Augmented()
    first = batches(data, THERE)
    plan = BatchPlan(global_batch=8, micro_batch=8, accumulation=1, world_size=1)
    requests = training_requests(Stream(9, len(data)), windows(plan, 0, 0, 8000))
    for _, batch in zip(range(3), open_loader(data, requests, THERE, key="test Augmented"), strict=False):
        assert len(batch["index"]) == 8
    last = batches(data, THERE)
    assert joined(last, "index") == joined(first, "index")
    assert set(joined(last, "pid")) == set(joined(first, "pid"))


def test_a_broken_item_is_raised_with_its_traceback_and_the_processes_live_on():
    broken = Augmented(broken_at=Stream(3, 50).ids(20, 21)[0])
    with pytest.raises(OSError, match=r"(?s)__getitem__.*cannot be read"):
        batches(broken, THERE, key="broken")
    pool = worker_pool(broken, THERE, "broken Augmented")
    assert pool.running
    assert joined(batches(broken, THERE, stop=16, key="broken"), "index")


def test_a_dead_process_is_an_error_and_the_next_trial_starts_afresh():
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        batches(Deadly(), LoaderSpec(workers=1), key="dead")
    pool = worker_pool(Deadly(), LoaderSpec(workers=1), "dead Deadly")
    assert not pool.running


@pytest.mark.parametrize("loader", [HERE, THERE], ids=["process", "workers"])
def test_a_batch_of_another_size_than_asked_for_is_refused(loader):
    with pytest.raises(ValueError, match=r"batch of 8 samples was asked for, and its tensors have \[7\] rows"):
        batches(Short(), loader)


@pytest.mark.parametrize(("size", "batch", "world"), [(1000, 256, 2), (101, 16, 4), (3, 256, 4)])
def test_evaluation_deals_each_sample_once(size, batch, world):
    dealt = [list(evaluation_requests(size, batch, rank, world)) for rank in range(world)]
    ids = np.concatenate([request.ids for rank in dealt for request in rank])
    assert sorted(ids.tolist()) == list(range(size))
    assert all(request.seed is None for rank in dealt for request in rank)


def test_random_items_are_the_same_in_every_evaluation():
    data = Augmented()
    first, second = (
        joined(open_loader(data, evaluation_requests(50, batch, 0, 1), HERE, key="val"), "draws") for batch in (7, 50)
    )
    assert first == second
    assert len({tuple(row) for row in first}) == 50
