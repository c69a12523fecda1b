"""A task that does what a test tells it: losses by script, exceptions and deaths on one rank."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from orchestrator.training.task import Task, TaskConfig

SAMPLES = 4096


PLACES = ("forward", "evaluation", "loader", "setup", "die")
STUCK = ("die always", "hang", "hang once")


class ScriptedConfig(TaskConfig):
    """`scene`: the loss of every sample ("0.5", "nan", "inf"), or the place where rank 1 breaks."""

    scene: str = "1.0"
    marker: str = ""


class _Rows:
    def __init__(self, task: Scripted) -> None:
        self._task = task

    def __len__(self) -> int:
        return SAMPLES

    def fetch(self, indices: np.ndarray[Any, Any], draws: Any) -> Any:
        if draws is not None:
            self._task.trip("loader")
        return torch.from_numpy(np.asarray(indices))


class Scripted(Task):
    """One parameter, and a loss that does not depend on it."""

    Config = ScriptedConfig
    metric_modes: ClassVar = {"loss": "min"}

    def __init__(self, config: ScriptedConfig) -> None:
        super().__init__(config)
        self._value = 1.0 if config.scene in (*PLACES, *STUCK) else float(config.scene)
        self.trip("setup")

    def trip(self, place: str) -> None:
        if self.config.scene != place or not torch.distributed.is_initialized() or torch.distributed.get_rank() != 1:
            return
        once = not os.path.exists(self.config.marker)
        if place in PLACES and place != "die":
            raise RuntimeError(f"scripted to break in {place}")
        if place == "die always" or (place == "die" and once):
            open(self.config.marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if place == "hang" or (place == "hang once" and once):
            open(self.config.marker, "w").close()
            time.sleep(1000)

    def model(self) -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    def train_data(self) -> _Rows:
        return _Rows(self)

    def val_data(self) -> _Rows:
        return _Rows(self)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        for place in ("forward", "die", *STUCK):
            self.trip(place)
        zero = 0.0 * model(torch.ones(1, 1)).sum()
        return (zero + self._value) * len(batch), len(batch)

    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        self.trip("evaluation")
        return {"loss": (torch.tensor(self._value * len(batch)), len(batch))}
