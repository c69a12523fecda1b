"""Trials in several legs, one going on where the one before was stopped, and tasks that tell what they trained on."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import toys
from torch import nn

from orchestrator.config.trial import OptimizerRef, TrialSpec
from orchestrator.tasks.arrays import TensorRows
from orchestrator.training.loop import run_trial

ADAM, MOMENTUM = OptimizerRef(name="AdamW"), OptimizerRef(name="SGD", options={"momentum": 0.9, "nesterov": True})
KINDS = pytest.mark.parametrize(
    ("optimizer", "precision", "lr"),
    [(MOMENTUM, "fp64", 0.05), (ADAM, "fp32", 1e-2), (MOMENTUM, "bf16", 0.05), (ADAM, "fp16", 1e-2)],
    ids=["momentum fp64", "adam fp32", "momentum bf16", "adam fp16"],
)
# Neither depends on the training, only on the machine's day.
_TIMES = {"samples_per_second", "step_ms", "data_wait_fraction", "peak_memory_bytes"}


def eventful(reducer: str, **changes: Any) -> TrialSpec:
    """A trial of two workers in which everything takes part: accumulation, warmup, decay, clipping, the noise probe."""
    trial = toys.spec((8, 2, 2), reducer=reducer, eval_every_samples=32 * 5, noise_probe=True, grad_clip=0.5, **changes)
    return replace(trial, lr=replace(trial.lr, warmup_samples=160, decay="cosine"))


class Listed(TensorRows):
    """Rows that note which of them were trained on."""

    def __init__(self, noted: list[int], *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.noted = noted

    def fetch(self, indices: np.ndarray[Any, Any], draws: Any) -> Any:
        if draws is not None:
            self.noted.extend(indices.tolist())
        return super().fetch(indices, draws)


class Noted(toys.Tokens):
    """Token-weighted classification of `size` samples; `noted` are the ids that it was trained on, on this rank."""

    def __init__(self, size: int = 300) -> None:
        super().__init__()
        self.size, self.noted = size, []

    def train_data(self) -> Listed:
        return Listed(self.noted, *toys.rows(self.size, 1).tensors)


class Restless(Noted):
    """All that a checkpoint must not forget: running statistics, dropout, buffers of each rank's own, a frozen
    parameter, a module's own extra state, and a loss that draws from every global generator."""

    def model(self) -> nn.Module:
        return Network()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, label, weight = batch
        if model.training:
            x = x * (1 + 0.1 * random.random()) + 0.1 * float(np.random.normal()) + 0.1 * torch.randn(())
        return super().loss(model, (x, label, weight))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(toys.FEATURES, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, toys.CLASSES)
        )
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)
        self.register_buffer("mean", torch.zeros(toys.FEATURES), persistent=False)
        self.register_buffer("none", None)
        self.calls = 0

    def get_extra_state(self) -> int:
        return self.calls

    def set_extra_state(self, state: int) -> None:
        self.calls = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
            with torch.no_grad():
                self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
                self.scale.copy_(1 + 1e-3 * self.calls)
        return self.layers((x - self.mean) * self.scale)


def leg(
    group: Any, task: Any, trial: Any, checkpoints: Any, stop_after: int | None = None, break_at: int | None = None
) -> dict[str, Any]:
    """Train until the budget, until the last rank asks for a stop at its update number `stop_after`, or until the
    listener breaks at the evaluation at `break_at` samples."""
    told: list[Any] = []
    asked: list[int] = []
    beats: list[int] = []

    def listen(evaluation: Any) -> bool:
        if evaluation.samples_seen == break_at:
            raise ConnectionError("the listener is gone")
        return bool(told.append((evaluation.samples_seen, repeatable(evaluation.metrics))))

    def stop() -> bool:
        asked.append(1)
        return group.rank == group.world_size - 1 and len(asked) == stop_after

    def beat() -> None:
        beats.append(1)
        wait_for_checkpoint()

    outcome = run_trial(trial, task, group, listen, stop_requested=stop, checkpoints=checkpoints, beat=beat)
    return {"outcome": outcome, "told": told, "ids": getattr(task, "noted", []), "beats": len(beats)}


def wait_for_checkpoint() -> None:
    """One that is due while another is still being written is left out, and no test may depend on that."""
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()


def repeatable(metrics: dict[str, float]) -> dict[str, float]:
    """Those that the same training gives again."""
    return {name: value for name, value in metrics.items() if name not in _TIMES}


def end_of(outcome: Any) -> tuple[Any, ...]:
    """What two ways to the same end share."""
    return (
        outcome.status,
        outcome.samples_seen,
        outcome.updates,
        outcome.skipped_updates,
        outcome.first_grad_norms,
        (outcome.noise),
    )


def dealt(ids_by_rank: list[list[int]], per_worker: int) -> list[int]:
    """Sample ids in the order of the stream, from what each rank was dealt."""
    ids, updates = [], len(ids_by_rank[0]) // per_worker
    for update in range(updates):
        for own in ids_by_rank:
            ids += own[update * per_worker : (update + 1) * per_worker]
    return ids
