"""Small tasks and specs that run in the gang's processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from orchestrator.config.trial import LrPlan, OptimizerRef, TaskRef, TrialSpec
from orchestrator.tasks.arrays import TensorRows
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.training.loop import run_trial
from orchestrator.training.task import Task

FEATURES, CLASSES = 12, 5


def spec(split: tuple[int, int, int] = (32, 1, 2), *, updates: int = 20, lr: float = 0.05, **changes: Any) -> TrialSpec:
    """A trial of `updates` updates over (micro batch, accumulation, world size)."""
    micro, accumulation, world = split
    total = micro * accumulation * world
    fields: dict[str, Any] = {
        "task": TaskRef(name="toys:Tokens"),
        "seed": 3,
        "plan": BatchPlan(global_batch=total, micro_batch=micro, accumulation=accumulation, world_size=world),
        "lr": LrPlan(base=lr, rule="none", peak=lr, reference_batch=total),
        "optimizer": OptimizerRef(name="SGD", options={"momentum": 0.9}),
        "budget_samples": updates * total,
        "eval_every_samples": updates * total,
        "eval_batch": 16,
        "precision": "fp64",
        "noise_probe": False,
    }
    return TrialSpec(**(fields | changes))


class Tokens(Task):
    """Classification whose samples have weights 0 to 3, as sequences have unmasked tokens; a mean over tokens."""

    weighted = True

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))

    def train_data(self) -> TensorRows:
        return rows(300, 1)

    def val_data(self) -> TensorRows:
        return rows(101, 2)

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x, label, weight = batch
        weight = weight if self.weighted else torch.ones_like(weight)
        return (F.cross_entropy(model(x), label, reduction="none") * weight).sum(), weight.sum()


class Samples(Tokens):
    """The same with equal weights."""

    weighted = False


def rows(n: int, seed: int) -> TensorRows:
    """Inputs, labels that depend on them, and weights."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, FEATURES, generator=generator)
    return TensorRows(x, x[:, :CLASSES].argmax(1), torch.randint(0, 4, (n,), generator=generator).float())


def train(group: Any, task: Task, trial: TrialSpec) -> tuple[Any, list[Any]]:
    """The outcome, and rank 0's evaluations."""
    seen: list[Any] = []
    outcome = run_trial(trial, task, group, lambda evaluation: bool(seen.append(evaluation)))
    return outcome, seen


def rank() -> int:
    """Of the process that runs this."""
    return dist.get_rank() if dist.is_initialized() else 0
