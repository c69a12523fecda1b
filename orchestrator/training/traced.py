"""A task whose batches have shapes and no values, so that its training step can be run without memory or data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orchestrator.theory.memory import largest_samples
from orchestrator.training.batches import convert, tensors
from orchestrator.training.group import Solo
from orchestrator.training.requests import Request, reader
from orchestrator.training.task import Sum, Task

_LOOKED_AT = 256
_ALIKE = 16
"""Samples of one size after which the others are taken to have it too."""


class BatchShape:
    """What a batch of any number of samples looks like, from the largest samples of some data.

    The dimensions that differ between a batch of two and one of three samples grow with the samples.
    """

    def __init__(self, data: Any) -> None:
        read, ids = reader(data), _largest_ids(data)
        two, three = (read(Request(np.array(ids[:n], dtype=np.int64), None, 0)) for n in (2, 3))
        self._structure = two
        self._shapes = [(a.shape, b.shape, a.dtype) for a, b in zip(tensors(two), tensors(three), strict=True)]

    def empty(self, rows: int) -> Any:
        """A batch of so many samples with undefined values; what is no tensor is that of the batch of two."""
        shapes = iter(self._shapes)

        def made(_: Tensor) -> Tensor:
            two, three, dtype = next(shapes)
            return torch.empty([a + (b - a) * (rows - 2) for a, b in zip(two, three, strict=True)], dtype=dtype)

        return convert(self._structure, made)


class ShapedData:
    """A `Fetchable` of `size` samples, each of the largest size."""

    def __init__(self, shape: BatchShape, size: int, before: Callable[[], None]) -> None:
        self._shape, self._size, self._before = shape, size, before

    def __len__(self) -> int:
        return self._size

    def fetch(self, indices: Any, draws: Any) -> Any:
        """As many rows as indices."""
        self._before()
        return self._shape.empty(len(indices))


class TracedTask(Task):
    """`task` over shapes.

    Args:
        task: read from here, outside of any fake mode, for it may keep what it reads.
        model: what it trains; its parameters may be fake.
        eval_rows: samples of the one evaluation batch.
        tell: told what is being done: ``data``, ``forward``, ``backward``.
    """

    def __init__(self, task: Task, model: nn.Module, *, eval_rows: int, tell: Callable[[str], None]) -> None:
        train, val = task.train_data(), task.val_data()
        self.config, self.metric_modes = task.config, task.metric_modes  # type: ignore[misc]
        self._task, self._model, self._tell = task, model, tell
        self._train = ShapedData(BatchShape(train), len(train), lambda: tell("data"))
        self._val = ShapedData(BatchShape(val), min(len(val), eval_rows), lambda: tell("data"))

    def model(self) -> nn.Module:
        """The given one."""
        return self._model

    def train_data(self) -> ShapedData:
        """As many samples as the task has."""
        return self._train

    def val_data(self) -> ShapedData:
        """One batch."""
        return self._val

    def loss(self, model: nn.Module, batch: Any) -> Sum:
        """The task's."""
        self._tell("forward")
        found = self._task.loss(model, batch)
        self._tell("backward")
        return found

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Sum]:
        """The task's."""
        self._tell("forward")
        return self._task.evaluate(model, batch)


class OneOf(Solo):
    """Rank 0 of `world_size` workers that are all like it; nothing is sent."""

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self.world_size = world_size

    def gather_objects(self, value: Any) -> list[Any]:
        """The same of all."""
        return [value] * self.world_size


def _largest_ids(data: Any) -> list[int]:
    """Three samples, the largest first, of those that were looked at."""
    ids = np.unique(np.linspace(0, len(data) - 1, min(len(data), _LOOKED_AT)).astype(np.int64)).tolist()
    read = reader(data)
    sizes: list[int] = []
    for i in ids:
        sizes.append(sum(tensor.numel() for tensor in tensors(read(Request(np.array([i]), None, 0)))))
        if len(sizes) >= _ALIKE and len(set(sizes)) == 1:
            break
    found = [ids[i] for i in largest_samples(sizes, 3)]
    return (found * 3)[:3]
