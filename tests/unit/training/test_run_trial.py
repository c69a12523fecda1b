"""Whole trials in this process, with the built-in tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from orchestrator.config.trial import LoaderSpec, LossScale, LrPlan, OptimizerRef, TaskRef, TrialSpec
from orchestrator.tasks.arrays import TensorRows
from orchestrator.tasks.digits import Digits
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.training.group import Solo
from orchestrator.training.loop import learning_rate, run_trial
from orchestrator.training.records import Outcome
from orchestrator.training.task import Task

METRICS = {
    "val/loss",
    "val/accuracy",
    "train/loss",
    "lr",
    "grad_norm",
    "updates",
    "samples_per_second",
    "step_ms",
    "data_wait_fraction",
    "peak_memory_bytes",
}


def spec(micro: int = 64, accumulation: int = 1, *, updates: int = 10, lr: float = 0.1, **changes: Any) -> TrialSpec:
    total = micro * accumulation
    fields: dict[str, Any] = {
        "task": TaskRef(name="digits"),
        "seed": 0,
        "plan": BatchPlan(global_batch=total, micro_batch=micro, accumulation=accumulation, world_size=1),
        "lr": LrPlan(base=lr, rule="none", peak=lr, reference_batch=total),
        "optimizer": OptimizerRef(name="SGD"),
        "budget_samples": updates * total,
        "eval_every_samples": updates * total,
    }
    return TrialSpec(**(fields | changes))


def train(task: Task, trial: TrialSpec) -> tuple[Outcome, list[Any]]:
    seen: list[Any] = []
    outcome = run_trial(trial, task, Solo(), lambda evaluation: bool(seen.append(evaluation)))
    return outcome, seen


class Linear(Task):
    """A loss of x . theta over given rows, at any scale."""

    def __init__(self, x: torch.Tensor, model: nn.Module | None = None) -> None:
        super().__init__()
        self.x, self.given, self.built = x, model, []

    def model(self) -> nn.Module:
        model = self.given or nn.Linear(self.x.shape[1], 1, bias=False)
        self.built.append(model)
        return model

    def train_data(self) -> TensorRows:
        return TensorRows(self.x)

    def val_data(self) -> TensorRows:
        return TensorRows(self.x)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0]).sum(), len(batch[0])


def test_digits_learn_and_tell_everything():
    outcome, seen = train(Digits(), spec(updates=320, eval_every_samples=64 * 80))
    assert (outcome.status, outcome.samples_seen, outcome.updates) == ("completed", 20480, 320)
    assert [e.samples_seen for e in seen] == [5120, 10240, 15360, 20480]
    assert set(seen[-1].metrics) == METRICS
    assert seen[-1].metrics["val/accuracy"] > 0.95
    assert len(outcome.first_grad_norms) == 20
    assert 0 < outcome.first_update_at < outcome.last_update_at
    assert 0 <= seen[-1].metrics["data_wait_fraction"] < 1
    assert seen[-1].train_seconds == pytest.approx(outcome.train_seconds, rel=0.01)
    assert outcome.notes == ()
    assert Outcome.from_dict(outcome.to_dict()) == outcome


def test_the_learning_rate_is_absolute():
    plan = LrPlan(base=0.4, rule="none", peak=0.4, reference_batch=64, warmup_samples=640, decay="linear", final=0.0)
    trial = spec(updates=110, lr=0.4)
    trial = replace(trial, lr=plan)
    assert learning_rate(trial, 0) == pytest.approx(0.04)
    assert learning_rate(trial, 9 * 64) == pytest.approx(0.4)
    assert learning_rate(trial, 60 * 64) == pytest.approx(0.2)
    _, seen = train(Digits(), replace(trial, eval_every_samples=61 * 64))
    assert seen[0].metrics["lr"] == learning_rate(trial, 60 * 64)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp64"])
def test_each_precision(precision):
    outcome, seen = train(Digits(), spec(32, 2, updates=60, precision=precision))
    assert outcome.status == "completed", outcome.reason
    assert seen[-1].metrics["val/loss"] < 1.0
    assert outcome.noise["windows"] == outcome.updates >= 50


def test_fp16_overflow_skips_updates_and_finds_its_scale():
    task = Linear(torch.full((8, 4), 100.0))
    outcome, seen = train(task, spec(8, updates=30, lr=1e-6, precision="fp16", loss_scale=LossScale(initial=2.0**20)))
    assert outcome.status == "completed"
    assert outcome.skipped_updates > 0
    assert outcome.updates + outcome.skipped_updates == 30
    assert seen[-1].metrics["loss_scale"] == 2.0 ** (20 - outcome.skipped_updates)
    assert outcome.first_grad_norms[0] == pytest.approx(200.0, rel=1e-3), "unscaled"


def test_a_loss_scale_that_collapses_fails_by_name():
    # Each sample's gradient fits fp16, and their sum over the batch does not, at any scale from 1 upward.
    task = Linear(torch.full((8, 4), 60000.0), nn.Sequential(nn.Linear(4, 1, bias=False)))
    task.given[0].weight.data.fill_(1e-6)
    outcome, seen = train(task, spec(8, updates=30, lr=0.0, precision="fp16", loss_scale=LossScale(initial=4.0)))
    assert (outcome.status, outcome.failure.kind) == ("failed", "LossScaleCollapse")
    assert "loss scale fell below 1" in outcome.reason
    assert (outcome.updates, outcome.skipped_updates, seen) == (0, 3, [])


def test_divergence_never_reaches_an_evaluation():
    outcome, seen = train(Digits(), spec(updates=200, lr=1e20, eval_every_samples=64))
    assert outcome.status == "diverged"
    assert "is not finite after" in outcome.reason
    assert all(np.isfinite(value) for e in seen for value in e.metrics.values())


def test_evaluation_does_not_depend_on_the_training_batch():
    losses = {}
    for micro in (64, 1024):
        _, seen = train(Digits(), spec(micro, updates=1, lr=0.0, eval_batch=100))
        losses[micro] = seen[0].metrics["val/loss"], seen[0].metrics["val/accuracy"]
    assert losses[64] == losses[1024]


def test_each_sample_is_evaluated_once():
    class Ids(Linear):
        def evaluate(self, model: nn.Module, batch: Any) -> Any:
            assert not model.training
            assert not torch.is_grad_enabled()
            return {"loss": (batch[0].sum(), len(batch[0]))}

    task = Ids(torch.arange(1000.0).reshape(-1, 1))
    for eval_batch in (7, 256, 4096):
        _, seen = train(task, spec(8, updates=1, lr=0.0, eval_batch=eval_batch))
        assert seen[0].metrics["val/loss"] == 499.5
        assert task.built[-1].training


def test_frozen_modules_stay_in_evaluation_mode():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 1))
    task = Linear(torch.randn(32, 4), model)
    outcome, _ = train(task, spec(8, updates=4, eval_every_samples=16))
    assert outcome.status == "completed"
    assert [module.training for module in model] == [True, False, True]
    assert model[1].num_batches_tracked == 0


def test_unused_parameters_stay_where_they_are():
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    model = Partly()
    before = model.unused.weight.clone()
    assert train(Linear(torch.randn(8, 4), model), spec(8))[0].status == "completed"
    assert torch.equal(model.unused.weight, before)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (Linear(torch.randn(0, 4)), "0 training and 0 validation samples"),
        (Linear(torch.randn(8, 4), nn.Identity()), "no parameter that requires a gradient"),
    ],
)
def test_what_cannot_be_trained_fails_in_setup(task, text):
    outcome, _ = train(task, spec(8))
    assert (outcome.status, outcome.failure.phase) == ("failed", "setup")
    assert text in outcome.reason


def test_a_gang_of_another_size_than_planned_is_refused():
    plan = BatchPlan(global_batch=64, micro_batch=32, accumulation=1, world_size=2)
    outcome, _ = train(Digits(), replace(spec(), plan=plan))
    assert "the plan wants 2 workers, and the gang has 1" in outcome.reason


class Noisy(torch.utils.data.Dataset):
    """A plain map-style data set with random augmentation."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index)) + torch.randn(4) + float(np.random.rand())


class Plain(Linear):
    def __init__(self) -> None:
        super().__init__(torch.zeros(1, 4))

    def train_data(self) -> Any:
        return Noisy()

    def val_data(self) -> Any:
        return Noisy()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return model(batch).square().sum(), len(batch)


def test_augmented_plain_data_trains_alike_however_the_batch_is_split():
    told = {}
    for micro, accumulation, workers in [(8, 1, 0), (2, 4, 0), (4, 2, 1)]:
        trial = spec(micro, accumulation, updates=12, lr=1e-4, precision="fp64", loader=LoaderSpec(workers=workers))
        outcome, seen = train(Plain(), trial)
        assert outcome.status == "completed", outcome.reason
        told[micro] = [*outcome.first_grad_norms, seen[0].metrics["val/loss"]]
    assert told[2] == pytest.approx(told[8], rel=1e-12)
    assert told[4] == pytest.approx(told[8], rel=1e-12)


def test_loader_processes_give_the_same_trial():
    here, there = (train(Digits(), spec(updates=5, loader=LoaderSpec(workers=workers))) for workers in (0, 1))
    assert here[0].first_grad_norms == there[0].first_grad_norms
    assert here[1][0].metrics["val/loss"] == there[1][0].metrics["val/loss"]


def test_evaluations_that_grow_apart_begin_before_the_first_update_and_change_nothing_else():
    trial = spec(16, updates=200, eval_every_samples=64)
    plain, seen = train(Digits(), trial)
    grown, apart = train(Digits(), replace(trial, eval_growth=0.1))
    assert apart[0].samples_seen == apart[0].updates == 0
    assert apart[0].metrics["val/loss"] == pytest.approx(2.3, abs=0.3)
    assert "train/loss" not in apart[0].metrics
    gaps = np.diff([e.samples_seen for e in apart])
    assert gaps[0] == 64
    assert gaps[-2] == pytest.approx(0.1 * 3200, abs=64)
    by_samples = {e.samples_seen: e.metrics["val/loss"] for e in seen}
    assert apart[-1].metrics["val/loss"] == by_samples[3200]
    assert plain.first_grad_norms == grown.first_grad_norms
    assert trial.key != replace(trial, eval_growth=0.1).key
