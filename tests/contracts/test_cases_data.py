"""Sample order, random augmentation and evaluation: what people found wrong elsewhere, as laws over any split."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset

from orchestrator.config.trial import LoaderSpec, LrPlan, OptimizerRef, TaskRef, TrialSpec
from orchestrator.tasks.arrays import TensorRows
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.theory.schedules import evaluation_points
from orchestrator.training.draws import Draws
from orchestrator.training.group import Solo
from orchestrator.training.loader import open_loader
from orchestrator.training.loop import run_trial
from orchestrator.training.requests import evaluation_requests, training_requests
from orchestrator.training.stream import Stream, windows
from orchestrator.training.task import Task

counts = st.integers(1, 6)


def flat(lists: list[list[Any]]) -> list[Any]:
    return [item for items in lists for item in items]


def plan(micro: int, accumulation: int = 1, world: int = 1) -> BatchPlan:
    total = micro * accumulation * world
    return BatchPlan(global_batch=total, micro_batch=micro, accumulation=accumulation, world_size=world)


def of_rank(seed: int, size: int, split: BatchPlan, rank: int, start: int, stop: int) -> list[list[int]]:
    """The sample ids of a rank's micro batches."""
    return [r.ids.tolist() for r in training_requests(Stream(seed, size), windows(split, rank, start, stop))]


def update_by_update(seed: int, size: int, split: BatchPlan, start: int, stop: int) -> list[int]:
    """The sample ids of all ranks, as the updates take them."""
    ranks = [of_rank(seed, size, split, rank, start, stop) for rank in range(split.world_size)]
    out = []
    for update in range((stop - start) // split.global_batch):
        for own in ranks:
            out += flat(own[update * split.accumulation :][: split.accumulation])
    return out


class Numbered(Task):
    """A sample is its own number; the loss sees it without teaching anything."""

    metric_modes: ClassVar = {"loss": "min", "squares": "min"}

    def __init__(self, train: int, val: int) -> None:
        super().__init__()
        self.sizes = train, val
        self.evaluated: list[list[float]] = []

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def train_data(self) -> TensorRows:
        return TensorRows(torch.arange(float(self.sizes[0])).reshape(-1, 1))

    def val_data(self) -> TensorRows:
        return TensorRows(torch.arange(float(self.sizes[1])).reshape(-1, 1))

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0]).square().sum(), len(batch[0])

    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        self.evaluated.append(batch[0].flatten().tolist())
        return {"loss": self.loss(model, batch), "squares": (batch[0].double().square().sum(), len(batch[0]))}


def spec(split: BatchPlan, budget: int, every: int, **changes: Any) -> TrialSpec:
    return TrialSpec(
        task=TaskRef(name="here:Numbered"),
        seed=0,
        plan=split,
        lr=LrPlan(base=0.0, rule="none", peak=0.0, reference_batch=1),
        optimizer=OptimizerRef(name="SGD"),
        budget_samples=budget,
        eval_every_samples=every,
        noise_probe=False,
        **changes,
    )


def evaluations(task: Task, trial: TrialSpec) -> list[Any]:
    seen: list[Any] = []
    outcome = run_trial(trial, task, Solo(), lambda evaluation: bool(seen.append(evaluation)))
    assert outcome.status == "completed", outcome.reason
    return seen


@pytest.mark.parametrize("eval_batch", [1000, 256, 7])
def test_the_evaluated_set_does_not_depend_on_the_training_batch(eval_batch: int) -> None:
    # areal-project/AReaL#1096: padding and drop_last of the training loader changed what was evaluated
    told = []
    for split in [plan(64), plan(16, 4), plan(4096), plan(1)]:
        task = Numbered(5000, 1000)
        (last,) = evaluations(task, spec(split, split.global_batch, split.global_batch, eval_batch=eval_batch))
        assert sorted(flat(task.evaluated)) == list(range(1000))
        assert last.metrics["val/squares"] == sum(i * i for i in range(1000)) / 1000
        told.append(last.metrics["val/loss"])
    assert len(set(told)) == 1


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 300), batch=st.integers(1, 120), world=st.integers(1, 9))
def test_every_rank_evaluates_its_own_and_together_they_evaluate_all_once(size: int, batch: int, world: int) -> None:
    dealt = [[r.ids.tolist() for r in evaluation_requests(size, batch, rank, world)] for rank in range(world)]
    assert sorted(i for own in dealt for ids in own for i in ids) == list(range(size))
    whole = {tuple(r.ids.tolist()) for r in evaluation_requests(size, batch, 0, 1)}
    assert {tuple(ids) for own in dealt for ids in own} == whole, "the batches are those of a single worker"


def test_a_rank_sees_another_order_in_every_epoch() -> None:
    # pytorch/pytorch#31771: a sampler that is never told the epoch gives the first order again and again
    for size, split in [(8, plan(4, 1, 2)), (1000, plan(5, 2, 4))]:
        for rank in range(split.world_size):

            def order(epoch: int, rank: int = rank, size: int = size, split: BatchPlan = split) -> list[int]:
                return flat(of_rank(0, size, split, rank, epoch * size, (epoch + 1) * size))

            epochs = [order(epoch) for epoch in range(4)]
            assert len({tuple(ids) for ids in epochs}) == 4
            assert epochs == [order(epoch) for epoch in range(4)]


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 60), micro=counts, accumulation=counts, world=counts, seed=st.integers(0, 2**63 - 1))
def test_every_sample_exactly_once_an_epoch_over_all_ranks(size, micro, accumulation, world, seed) -> None:
    split = plan(micro, accumulation, world)
    updates = math.ceil(3 * size / split.global_batch)
    order = update_by_update(seed, size, split, 0, updates * split.global_batch)
    for epoch in range(3):
        assert sorted(order[epoch * size : (epoch + 1) * size]) == list(range(size))
    assert order == Stream(seed, size).ids(0, len(order)).tolist()


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 60), total=st.sampled_from([12, 24]), at=st.integers(0, 20), data=st.data())
def test_the_order_goes_on_anywhere_with_any_other_split(size: int, total: int, at: int, data: Any) -> None:
    # huggingface/accelerate#2016, #4071: the skip was applied to another epoch's order
    divisors = [n for n in range(1, total + 1) if total % n == 0]

    def some_split() -> BatchPlan:
        world = data.draw(st.sampled_from(divisors))
        micro = data.draw(st.sampled_from([n for n in divisors if total // world % n == 0]))
        return plan(micro, total // world // micro, world)

    order = update_by_update(7, size, some_split(), 0, at * total)
    order += update_by_update(7, size, some_split(), at * total, (at + 5) * total)
    assert order == Stream(7, size).ids(0, (at + 5) * total).tolist()


def test_a_run_stopped_in_its_second_epoch_continues_at_the_next_sample() -> None:
    # 1000 samples, batch 8, stopped after update 200 (75 done of epoch 1) and taken on to 500
    split = plan(8)
    whole = update_by_update(0, 1000, split, 0, 4000)
    assert update_by_update(0, 1000, split, 1600, 4000) == whole[1600:]
    assert all(sorted(whole[i : i + 1000]) == list(range(1000)) for i in range(0, 4000, 1000))


@settings(max_examples=40, deadline=None)
@given(world=st.integers(1, 4), loaders=st.integers(1, 4), seed=st.integers(0, 2**63 - 1), kind=st.integers(0, 2))
def test_no_two_loader_processes_of_any_rank_draw_alike(world: int, loaders: int, seed: int, kind: int) -> None:
    # huggingface/transformers#37932, pytorch/pytorch#5059: same-numbered workers of all ranks drew the same numbers
    size = 2 * world * loaders

    def drawn(epoch: int) -> list[float]:
        out = []
        for rank in range(world):
            requests = list(
                training_requests(
                    Stream(seed, size), windows(plan(2, loaders, world), rank, epoch * size, (epoch + 1) * size)
                )
            )
            for loader in range(loaders):  # torch deals batches to loader processes in turn
                request = requests[loader]
                draws = Draws(request.seed, np.arange(request.start, request.start + 2))
                numbers = [draws.uniform(1), draws.normal(1), draws.normal32(1).astype(float)][kind]
                out += numbers[:, 0].tolist()
        return out

    first, second = drawn(0), drawn(1)
    assert len(set(first + second)) == 2 * size, "distinct over ranks, processes, samples and epochs"
    assert drawn(0) == first


class Random(Dataset[Any]):
    """Items with random augmentation out of the three global generators."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> list[float]:
        import random

        return [float(index), torch.rand(()).item(), float(np.random.rand()), random.random()]


def test_a_seed_fixes_the_run_and_not_the_epoch() -> None:
    # ray-project/ray#55275: the helper for reproducibility froze one order for all epochs
    def run(seed: int) -> list[list[float]]:
        requests = training_requests(Stream(seed, 6), windows(plan(3), 0, 0, 24))
        batches = open_loader(Random(), requests, LoaderSpec(), key="random")
        return [row for batch in batches for row in torch.stack(batch, dim=1).tolist()]

    rows = run(3)
    orders = [tuple(row[0] for row in rows[i : i + 6]) for i in range(0, 24, 6)]
    assert len(set(orders)) > 1
    for column in (1, 2, 3):
        assert len({row[column] for row in rows}) == 24, "another draw for a sample in every epoch"
    assert run(3) == rows
    assert run(4) != rows


@settings(max_examples=20, deadline=None)
@given(
    total=st.sampled_from([1, 4, 12, 64, 96]),
    every=st.integers(1, 400),
    budget=st.integers(1, 400),
    data=st.data(),
)
def test_evaluations_stand_where_samples_cross_multiples_whatever_the_split(total, every, budget, data) -> None:
    # Lightning-AI/pytorch-lightning#12205: the interval counted micro batches
    micro = data.draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    seen = evaluations(Numbered(10, 1), spec(plan(micro, total // micro), budget, every))
    points = [e.samples_seen for e in seen]
    assert points == evaluation_points(total, budget, every)
    assert [e.metrics["updates"] * total for e in seen] == points
    ends = list(range(total, points[-1] + total, total))
    assert points[-1] == total * math.ceil(budget / total)
    assert points == [s for s in ends if s // every > (s - total) // every or s == points[-1]]


def test_the_published_evaluation_points() -> None:
    trial = spec(plan(64), 4032, 1000)
    for split in (plan(64), plan(16, 4), plan(8, 8)):
        seen = evaluations(Numbered(100, 1), replace(trial, plan=split))
        assert [(e.samples_seen, e.updates) for e in seen] == [(1024, 16), (2048, 32), (3008, 47), (4032, 63)]
    large = evaluations(Numbered(100, 1), spec(plan(4096), 8192, 1000))
    assert [e.samples_seen for e in large] == [4096, 8192]
