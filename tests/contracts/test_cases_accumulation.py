"""Gradient accumulation: what people found wrong elsewhere, as laws over any split and any weights, on one worker.

With several workers the same laws are held by tests/distributed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from orchestrator.config.trial import LossScale, LrPlan, OptimizerRef, TaskRef, TrialSpec
from orchestrator.tasks.arrays import TensorRows
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.training.group import Solo
from orchestrator.training.loop import run_trial
from orchestrator.training.records import Evaluation, Outcome
from orchestrator.training.stream import Stream, windows
from orchestrator.training.task import Task


def plan(micro: int, accumulation: int = 1, world: int = 1) -> BatchPlan:
    total = micro * accumulation * world
    return BatchPlan(global_batch=total, micro_batch=micro, accumulation=accumulation, world_size=world)


def spec(split: BatchPlan, *, updates: int = 1, lr: float = 1.0, **changes: Any) -> TrialSpec:
    total = split.global_batch
    fields: dict[str, Any] = {
        "task": TaskRef(name="here:Given"),
        "seed": 0,
        "plan": split,
        "lr": LrPlan(base=lr, rule="none", peak=lr, reference_batch=total),
        "optimizer": OptimizerRef(name="SGD"),
        "budget_samples": updates * total,
        "eval_every_samples": total,
        "precision": "fp64",
        "noise_probe": False,
    }
    return TrialSpec(**(fields | changes))


class Given(Task):
    """A sample is (gradient, tokens): its loss is tokens * gradient . theta, from theta = 1.

    A micro batch without tokens has the loss 0/0 * 0, which is what a mean over tokens gives there.
    """

    def __init__(self, gradients: list[list[float]], tokens: list[float]) -> None:
        super().__init__()
        self.rows = TensorRows(torch.tensor(gradients), torch.tensor(tokens))
        self.theta = nn.Parameter(torch.empty(0))

    def model(self) -> nn.Module:
        model = nn.Module()
        model.theta = self.theta = nn.Parameter(torch.ones(self.rows.tensors[0].shape[1]))
        return model

    def train_data(self) -> TensorRows:
        return self.rows

    def val_data(self) -> TensorRows:
        return TensorRows(torch.ones(1, self.rows.tensors[0].shape[1]), torch.ones(1))

    def loss(self, model: nn.Module, batch: Any) -> Any:
        gradient, tokens = batch
        mean = (tokens * (gradient * model.theta).sum(1)).sum() / tokens.sum()
        return mean * tokens.sum(), tokens.sum()


def train(task: Task, trial: TrialSpec) -> tuple[Outcome, list[Evaluation]]:
    seen: list[Evaluation] = []
    return run_trial(trial, task, Solo(), lambda evaluation: bool(seen.append(evaluation))), seen


# The tokens of 12 samples, and a split of their one window; gradients are small whole numbers.
some_tokens = st.lists(st.integers(0, 9), min_size=12, max_size=12)
some_gradients = st.lists(st.integers(-9, 9), min_size=12, max_size=12)
some_splits = st.sampled_from([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)])


@settings(max_examples=20, deadline=None)
@given(tokens=some_tokens, gradients=some_gradients, split=some_splits, clip=st.none() | st.floats(0.1, 20.0))
def test_a_loss_is_a_mean_over_the_tokens_of_the_whole_window(tokens, gradients, split, clip) -> None:
    # huggingface/transformers#34242: a mean of micro batches' means weighs short sequences too much
    task = Given([[float(g)] for g in gradients], [float(t) for t in tokens])
    outcome, seen = train(task, spec(plan(*split), grad_clip=clip))
    assert outcome.status == "completed", outcome.reason
    if sum(tokens) == 0:
        assert (outcome.updates, outcome.skipped_updates, task.theta.tolist()) == (0, 1, [1.0])
        assert "train/loss" not in seen[0].metrics
        return
    mean = sum(t * g for t, g in zip(tokens, gradients, strict=True)) / sum(tokens)
    assert seen[0].metrics["train/loss"] == pytest.approx(mean, abs=1e-12)
    assert outcome.first_grad_norms == pytest.approx([abs(mean)], abs=1e-12)
    step = mean if clip is None or abs(mean) <= clip else clip * mean / abs(mean)
    assert task.theta.tolist() == pytest.approx([1.0 - step], abs=1e-12)


@pytest.mark.parametrize(
    ("budget", "split", "updates"),
    [(10, (1, 4), 3), (3, (1, 8), 1), (8, (2, 4), 1), (9, (2, 4), 2), (7, (7, 1), 1), (100, (1, 3), 34)],
)
def test_leftovers_make_an_update_and_the_schedule_counts_it(budget: int, split: tuple[int, int], updates: int) -> None:
    # tracel-ai/burn#5695: floor division drops the last micro batches and shortens the schedule
    whole = plan(*split)
    lr = LrPlan(base=1.0, rule="none", peak=1.0, reference_batch=1, decay="linear")
    _, seen = train(Given([[0.0]], [1.0]), replace(spec(whole), budget_samples=budget, lr=lr))
    assert [e.metrics["updates"] for e in seen] == list(range(1, updates + 1))
    rates = [1.0 - update * whole.global_batch / budget for update in range(updates)]
    assert [e.metrics["lr"] for e in seen] == pytest.approx(rates)


@pytest.mark.parametrize("name", ["micro_batch", "accumulation", "world_size"])
@pytest.mark.parametrize("bad", [0, -1, True, 1.0])
def test_accumulation_below_one_is_refused(name: str, bad: Any) -> None:
    # NVIDIA-NeMo/Automodel#2257: accumulation 0 was accepted
    with pytest.raises(ValueError, match=name):
        replace(plan(2, 2, 2), **{name: bad})


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 50),
    micro=st.integers(1, 5),
    accumulation=st.integers(1, 4),
    world=st.integers(1, 5),
    updates=st.integers(1, 12),
)
def test_ranks_have_equally_many_micro_batches_of_equal_size(size, micro, accumulation, world, updates) -> None:
    # pytorch/pytorch#44425, dreamquark-ai/tabnet#537: unequal counts hang, and drop_last leaves nothing to train on
    split = plan(micro, accumulation, world)
    stop = updates * split.global_batch
    of_rank = [list(windows(split, rank, 0, stop)) for rank in range(world)]
    assert {len(own) for own in of_rank} == {updates * accumulation}
    assert {window.stop - window.start for own in of_rank for window in own} == {micro}
    positions = sorted(p for own in of_rank for window in own for p in range(*window))
    assert positions == list(range(stop)), "no position is lost or seen twice"
    stream = Stream(1, size)
    ids = [
        i
        for update in range(updates)
        for own in of_rank
        for window in own[update * accumulation :][:accumulation]
        for i in stream.ids(*window).tolist()
    ]
    for epoch in range(stop // size):
        assert sorted(ids[epoch * size : (epoch + 1) * size]) == list(range(size))


@pytest.mark.parametrize(("size", "split"), [(500, (1024, 1)), (3, (1, 4)), (1, (8, 2)), (7, (3, 1))])
def test_a_batch_over_the_data_trains_on_all_of_it(size: int, split: tuple[int, int]) -> None:
    # dreamquark-ai/tabnet#537: no batch at all, a loss of 0.0, and in a sweep that wins
    task = Given([[2.0]] * size, [1.0] * size)
    outcome, seen = train(task, spec(plan(*split), lr=0.25))
    assert (outcome.updates, task.theta.tolist()) == (1, [0.5])
    assert seen[0].metrics["train/loss"] == pytest.approx(2.0)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16"])
def test_clipping_sees_the_mean_of_the_window(precision: Any) -> None:
    # microsoft/Swin-Transformer#311: clipping each gives (0, 0.8), clipping while scaled by 65536 (0, 1.5e-5)
    task = Given([[3.0, 4.0], [-3.0, 4.0]], [1.0, 1.0])
    outcome, _ = train(task, spec(plan(1, 2), grad_clip=1.0, precision=precision))
    assert task.theta.tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert outcome.first_grad_norms == pytest.approx([4.0])


def test_a_window_skipped_by_the_loss_scaler_is_no_update_and_gives_no_point() -> None:
    # frgfm/holocron#504: 25 micro batches by 4 are 7 windows; the losses of skipped ones were booked as updates
    task = Matmul()
    scale = LossScale(initial=2.0**18)
    trial = spec(plan(1, 4), budget_samples=25, precision="fp16", loss_scale=scale, lr=1e-9)
    outcome, seen = train(task, trial)
    # Scaled gradients of 2**18 and 2**17 and 2**16 are over fp16's 65504.
    assert (outcome.updates, outcome.skipped_updates, len(outcome.first_grad_norms)) == (4, 3, 4)
    assert [e.metrics["updates"] for e in seen] == [0, 0, 0, 1, 2, 3, 4]
    assert outcome.samples_seen == 28


class Matmul(Given):
    """Through a matrix product, which autocast takes to fp16."""

    def __init__(self) -> None:
        super().__init__([[1.0]], [1.0])

    def model(self) -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0]).sum(), len(batch[0])
