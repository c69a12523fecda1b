"""Memory that runs out on one rank: smaller micro batches on all, the same update, the same trajectory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import toys
from broken import RaisesInBackward
from legs import Listed, Noted, dealt, end_of, leg
from torch import nn

from orchestrator.config.trial import LoaderSpec
from orchestrator.training.checkpoint import Checkpoints
from orchestrator.training.group import Solo
from orchestrator.training.stream import ids
from orchestrator.training.workers import close_pools

REDUCERS = pytest.mark.parametrize("reducer", ["flat", "ddp"])


class NoRoomBackward(torch.autograd.Function):
    """The identity, whose backward finds no memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB")


class Cramped(Noted):
    """On each rank, micro batches and evaluation batches up to `limits` samples fit, from the update `since` on.

    ``early`` and ``late`` run out in backward, before any gradient is there and when DDP may have summed some buckets;
    ``forward`` does as torch's CPU allocator would, and ``loader`` as numpy does. The model fills several DDP buckets.
    """

    def __init__(self, phase: str, limits: tuple[int, ...], *, since: int = 3, eval_limits: Any = None) -> None:
        super().__init__()
        self.phase, self.limits, self.since, self.eval_limits = phase, limits, since, eval_limits
        self.sizes: list[int] = []
        self.eval_sizes: list[int] = []

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(toys.FEATURES, 700), nn.Tanh(), nn.Sequential(nn.Linear(700, 700), nn.Linear(700, toys.CLASSES))
        )

    def train_data(self) -> Any:
        return Short(self, *toys.rows(self.size, 1).tensors)

    def short(self, size: int, phase: str, *, seen: int) -> bool:
        return phase == self.phase and seen > 16 * self.since and size > self.limits[toys.rank()]

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, label, weight = batch
        if not torch.is_grad_enabled():
            return super().loss(model, batch)
        self.sizes.append(len(x))
        seen = sum(self.sizes)
        if self.short(len(x), "forward", seen=seen):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.")
        if self.short(len(x), "late", seen=seen):
            hidden = NoRoomBackward.apply(model[0](x))
            loss = torch.nn.functional.cross_entropy(model[2](model[1](hidden)), label, reduction="none")
            return (loss * weight).sum(), weight.sum()
        loss, total = super().loss(model, batch)
        return (NoRoomBackward.apply(loss) if self.short(len(x), "early", seen=seen) else loss), total

    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        self.eval_sizes.append(len(batch[0]))
        if self.eval_limits and len(batch[0]) > self.eval_limits[toys.rank()]:
            raise torch.OutOfMemoryError("CUDA out of memory in evaluation")
        return super().evaluate(model, batch)


class Short(Listed):
    def __init__(self, task: Cramped, *tensors: torch.Tensor) -> None:
        super().__init__(task.noted, *tensors)
        self.task = task

    def fetch(self, indices: np.ndarray[Any, Any], draws: Any) -> Any:
        if draws is not None and self.task.short(len(indices), "loader", seen=sum(self.task.sizes) + len(indices)):
            raise MemoryError("Unable to allocate 99 GiB for an array")
        return super().fetch(indices, draws)


def _leg(group: Any, phase: str, limits: Any, trial: Any, changes: Any, *args: Any) -> dict[str, Any]:
    task = Cramped(phase, limits, **changes)
    return leg(group, task, trial, *(args or (None,))) | {"sizes": task.sizes, "eval_sizes": task.eval_sizes}


@REDUCERS
@pytest.mark.parametrize("phase", ["loader", "forward", "early", "late"])
def test_no_memory_on_rank_1_halves_the_micro_batch_on_both(phase, reducer, two):
    # mosaicml/composer#2117: in DDP's backward it used to leave the others waiting for ever
    trial = toys.spec((16, 1, 2), updates=12, reducer=reducer, eval_every_samples=96, noise_probe=True)
    whole = two.run(_leg, phase, (99, 99), trial, {})
    found = two.run(_leg, phase, (99, 5), trial, {})
    for part in found:
        outcome = part["outcome"]
        assert (outcome.status, outcome.updates, outcome.samples_seen) == ("completed", 12, 384), outcome.reason
        assert outcome.plan == {"micro_batch": 4, "accumulation": 4, "world_size": 2}
        assert outcome.notes == (
            "micro batch 16 did not fit in memory after 96 samples: 32 = micro 8 x accumulation 2 x world 2",
            "micro batch 8 did not fit in memory after 96 samples: 32 = micro 4 x accumulation 4 x world 2",
        )
        assert part["sizes"][-9 * 4 :] == [4] * (9 * 4), "nine updates in the smaller split"
    # The same update again, and no sample skipped: its ids are those of the stream.
    redone = [part["ids"][-9 * 16 :] for part in found]
    assert dealt(redone, 16) == ids(trial.seed, 96, 384, 300).tolist()
    first, *rest = found[0]["told"]
    assert [samples for samples, _ in found[0]["told"]] == [96, 192, 288, 384]
    assert not {name for name in first[1] if name.startswith("geometry/")}
    for samples, metrics in rest:
        assert {name: value for name, value in metrics.items() if name.startswith("geometry/")} == {
            "geometry/micro_batch": 4.0,
            "geometry/accumulation": 4.0,
        }, samples
    for (_, got), (_, right) in zip(found[0]["told"], whole[0]["told"], strict=True):
        for name in right:
            assert got[name] == pytest.approx(right[name], rel=1e-10), name
    # The gang is as good as before.
    assert end_of(two.run(_leg, phase, (99, 99), trial, {})[0]["outcome"]) == end_of(whole[0]["outcome"])


@REDUCERS
@pytest.mark.parametrize("phase", ["forward", "early", "late"])
def test_a_micro_batch_of_1_that_does_not_fit_ends_the_trial(phase, reducer, two):
    trial = toys.spec((4, 4, 2), updates=12, reducer=reducer)
    outcomes = [part["outcome"] for part in two.run(_leg, phase, (99, 0), trial, {})]
    assert outcomes[0].failure == outcomes[1].failure
    failure, where = outcomes[0].failure, "forward" if phase == "forward" else "backward"
    assert (failure.rank, failure.phase, failure.out_of_memory) == (1, where, True)
    assert failure.kind == ("RuntimeError" if phase == "forward" else "OutOfMemoryError")
    assert f"{where} failed on rank 1" in outcomes[0].reason
    assert "micro batch 1 does not fit in memory" in outcomes[0].reason
    assert (outcomes[0].status, outcomes[0].updates) == ("failed", 3)
    assert outcomes[0].plan == {"micro_batch": 1, "accumulation": 16, "world_size": 2}


@REDUCERS
def test_another_failure_beside_it_ends_the_trial_at_once(reducer, two):
    trial = toys.spec((4, 4, 2), updates=12, reducer=reducer)
    outcomes = [part["outcome"] for part in two.run(_both, trial)]
    assert {(o.status, o.failure.rank, o.updates, o.plan["micro_batch"]) for o in outcomes} == {("failed", 0, 3, 4)}


def _both(group: Any, trial: Any) -> dict[str, Any]:
    task = Cramped("early", (99, 2))
    if group.rank == 0:

        def loss(model: nn.Module, batch: Any) -> Any:
            value, weight = Cramped.loss(task, model, batch)
            return (RaisesInBackward.apply(value) if len(task.noted) > 48 else value), weight

        task.loss = loss
    return leg(group, task, trial, None)


@REDUCERS
def test_no_memory_in_evaluation_lowers_the_evaluation_batch_only(reducer, two):
    # huggingface/transformers#32215: it used to halve the training batch and start again
    trial = toys.spec((16, 1, 2), updates=12, reducer=reducer, eval_every_samples=96, eval_batch=64)
    whole = two.run(_leg, "none", (99, 99), trial, {})
    found = two.run(_leg, "none", (99, 99), trial, {"eval_limits": (99, 20)})
    for part in found:
        outcome = part["outcome"]
        assert (outcome.status, outcome.updates) == ("completed", 12), outcome.reason
        assert outcome.notes == ("evaluation batch 64 did not fit in memory: 16 samples",)
        assert outcome.plan == {"micro_batch": 16, "accumulation": 1, "world_size": 2}
        assert part["sizes"] == [16] * 12, "no update was repeated"
    # Rank 1 takes the rest of 101 samples after the first 64, then every second batch.
    assert found[1]["eval_sizes"] == [37, 32, 16, 16, 16] + [16, 16, 16] * 3
    assert end_of(found[0]["outcome"]) == end_of(whole[0]["outcome"])
    for (_, got), (_, right) in zip(found[0]["told"], whole[0]["told"], strict=True):
        assert got == pytest.approx(right, rel=1e-12)


def test_an_evaluation_batch_of_1_that_does_not_fit_ends_the_trial(two):
    trial = toys.spec((16, 1, 2), updates=12, eval_every_samples=96, eval_batch=8)
    outcomes = [part["outcome"] for part in two.run(_leg, "none", (99, 99), trial, {"eval_limits": (99, 0)})]
    assert outcomes[0].failure == outcomes[1].failure
    assert (outcomes[0].failure.rank, outcomes[0].failure.phase) == (1, "evaluation")
    assert "an evaluation batch of 1 sample does not fit in memory" in outcomes[0].reason


@REDUCERS
def test_a_trial_that_was_split_smaller_goes_on_from_its_checkpoint(reducer, two, tmp_path):
    trial = toys.spec((16, 1, 2), updates=12, reducer=reducer, eval_every_samples=96, noise_probe=True)
    whole = two.run(_leg, "none", (99, 99), trial, {})
    policy = Checkpoints(folder=str(tmp_path), every_s=1e9)
    first = two.run(_leg, "early", (99, 5), trial, {}, policy, 6)
    rest = two.run(_leg, "early", (99, 5), trial, {"since": 0}, policy)
    assert [part[0]["outcome"].status for part in (first, rest)] == ["stopped", "completed"]
    assert rest[0]["outcome"].plan["micro_batch"] == 4
    for (_, got), (_, right) in zip(first[0]["told"] + rest[0]["told"], whole[0]["told"], strict=True):
        for name in right:
            assert got[name] == pytest.approx(right[name], rel=1e-10), name


@REDUCERS
def test_a_rank_that_cannot_be_split_smaller_ends_the_trial_on_all(reducer, two):
    trial = toys.spec((16, 1, 2), updates=5, reducer=reducer)
    outcomes = two.run(_stuck, trial)
    assert outcomes[0].failure == outcomes[1].failure
    assert (outcomes[0].status, outcomes[0].failure.rank, outcomes[0].updates) == ("failed", 1, 3)
    assert "no room for a second reducer" in outcomes[0].reason
    assert two.run(_leg, "none", (99, 99), trial, {})[0]["outcome"].status == "completed"


def _stuck(group: Any, trial: Any) -> Any:
    from orchestrator.training import setup

    right, built = setup._reducer, []

    def build(*args: Any, **options: Any) -> Any:
        built.append(1)
        if group.rank == 1 and len(built) == 2:
            raise MemoryError("no room for a second reducer")
        return right(*args, **options)

    setup._reducer = build
    try:
        return leg(group, Cramped("early", (99, 5)), trial, None)["outcome"]
    finally:
        setup._reducer = right


class Own(Cramped):
    """With a buffer that each rank sets once, to a value of its own."""

    def model(self) -> nn.Module:
        self.built = super().model()
        self.built.register_buffer("own", torch.zeros(()))
        return self.built

    def loss(self, model: nn.Module, batch: Any) -> Any:
        if not self.sizes:
            model.own.fill_(toys.rank() + 1)
        return super().loss(model, batch)


@REDUCERS
def test_buffers_of_each_rank_stay_its_own(reducer, two):
    trial = toys.spec((16, 1, 2), updates=5, reducer=reducer)
    assert two.run(_own, trial) == [(1.0, 4), (2.0, 4)]


def _own(group: Any, trial: Any) -> tuple[float, int]:
    task = Own("early", (99, 5))
    outcome = leg(group, task, trial, None)["outcome"]
    return float(task.built.own), outcome.plan["micro_batch"]


@pytest.mark.parametrize("workers", [0, 1])
def test_one_worker_alone_accumulates_where_it_did_not(workers):
    """Its noise probe begins to work then: there are micro batches to compare."""
    trial = toys.spec((32, 1, 1), updates=15, noise_probe=True, loader=LoaderSpec(workers=workers))
    part = _leg(Solo(), "early", (8,), trial, {"since": 2})
    close_pools()
    assert part["outcome"].status == "completed", part["outcome"].reason
    assert part["outcome"].plan == {"micro_batch": 8, "accumulation": 4, "world_size": 1}
    assert part["sizes"] == [32, 32, 16] + [8, 8, 8, 8] * 14
    assert part["outcome"].noise["windows"] == 15 - 1
