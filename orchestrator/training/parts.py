"""What one trial is made of on one rank, once `setup` has built it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.training.evaluate import Evaluator
from orchestrator.training.precision import Scaler
from orchestrator.training.probe import NoiseProbe
from orchestrator.training.reducer import Reducer


@dataclass(kw_only=True)
class Parts:
    """One trial's parts on one rank.

    Attributes:
        loss: the task's ``batch -> (sum, weight)`` over `model`.
        load: ``(plan, samples_seen)`` to this rank's micro batches from there on, in order, on the device.
        batches: what `load` gave for the plan at hand.
        context: autocast, or nothing.
        notes: findings for the outcome.
    """

    model: nn.Module
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    reducer: Reducer = field(init=False)
    loss: Callable[[Any], tuple[Tensor, Any]]
    load: Callable[[BatchPlan, int], Iterator[Any]]
    batches: Iterator[Any]
    evaluator: Evaluator
    scaler: Scaler
    probe: NoiseProbe
    context: AbstractContextManager[Any]
    notes: tuple[str, ...]

    def drop_reducer(self) -> None:
        """Let go of the gradients and whatever else the reducer holds, if there still is one."""
        if hasattr(self, "reducer"):
            self.reducer.close()
            del self.reducer
