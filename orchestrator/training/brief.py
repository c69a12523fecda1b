"""A task cut down to a few validation samples, for warming a worker up without paying for a whole evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from orchestrator.training.task import Fetchable, Sum, Task


class _Head:
    """The first `count` samples of fetchable data."""

    def __init__(self, data: Fetchable, count: int) -> None:
        self._data, self._count = data, min(count, len(data))

    def __len__(self) -> int:
        return self._count

    def fetch(self, indices: np.ndarray[Any, Any], draws: Any) -> Any:
        return self._data.fetch(indices, draws)


class Brief(Task):
    """`task` with its first `count` validation samples only."""

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task.config)
        self._task, self._count = task, count

    def model(self) -> nn.Module:
        return self._task.model()

    def train_data(self) -> Any:
        return self._task.train_data()

    def val_data(self) -> Any:
        data = self._task.val_data()
        if isinstance(data, Fetchable):
            return _Head(data, self._count)
        return torch.utils.data.Subset(data, range(min(self._count, len(data))))

    def loss(self, model: nn.Module, batch: Any) -> Sum:
        return self._task.loss(model, batch)

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Sum]:
        return self._task.evaluate(model, batch)
