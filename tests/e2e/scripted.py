"""A task that does what a test tells it: losses by script, exceptions and deaths on one rank."""

from __future__ import annotations

import os
import signal
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from orchestrator.training.task import Task, TaskConfig

SAMPLES = 4096


class ScriptedConfig(TaskConfig):
    """`value`: the loss of every sample, as text so that nan and inf can be written. `breaks`: what goes wrong."""

    value: str = "1.0"
    breaks: Literal["", "forward", "evaluation", "loader", "setup", "die"] = ""
    rank: int = 1
    after: int = 0
    marker: str = ""


class _Rows:
    def __init__(self, task: Scripted) -> None:
        self._task = task

    def __len__(self) -> int:
        return SAMPLES

    def fetch(self, indices: np.ndarray[Any, Any], draws: Any) -> Any:
        if draws is not None:
            self._task.trip("loader", int(draws.positions[0]))
        return torch.from_numpy(np.asarray(indices))


class Scripted(Task):
    """One parameter that slowly falls from `value`."""

    Config = ScriptedConfig
    metric_modes: ClassVar = {"loss": "min", "falling": "min"}

    def __init__(self, config: ScriptedConfig) -> None:
        super().__init__(config)
        if config.breaks == "setup" and torch.distributed.is_initialized():
            self.trip("setup", SAMPLES)

    def trip(self, where: str, position: int) -> None:
        config = self.config
        if config.breaks != where or position < config.after or not torch.distributed.is_initialized():
            return
        if torch.distributed.get_rank() != config.rank:
            return
        if where == "die":
            if os.path.exists(config.marker):
                return  # once is enough
            if config.marker:
                open(config.marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError(f"scripted to break in {where}")

    def model(self) -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    def train_data(self) -> _Rows:
        return _Rows(self)

    def val_data(self) -> _Rows:
        return _Rows(self)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        self.trip("forward", SAMPLES)
        self.trip("die", SAMPLES)
        zero = 0.0 * model(torch.ones(1, 1)).sum()
        return (zero + float(self.config.value)) * len(batch), len(batch)

    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        self.trip("evaluation", SAMPLES)
        value = float(self.config.value) * len(batch)
        return {"loss": (torch.tensor(value), len(batch)), "falling": (torch.tensor(value), len(batch))}
