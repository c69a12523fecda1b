"""A task whose batches have shapes and no values, so that its training step can be run without memory or data."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orchestrator.training.batches import convert, tensors
from orchestrator.training.group import Solo
from orchestrator.training.requests import Request, reader
from orchestrator.training.sample_sizes import find_largest
from orchestrator.training.task import Sum, Task

_seen: tuple[weakref.ref[Task], tuple[BatchShape, BatchShape]] | None = None  # of the task that was traced last


class BatchShape:
    """What a batch of any number of samples looks like, from the largest samples of some data.

    The dimensions that differ between a batch of two and one of three samples grow with the samples.
    """

    def __init__(self, data: Any) -> None:
        read, ids = reader(data), find_largest(data).ids
        two, three = (read(Request(np.array(ids[:n], dtype=np.int64), 0, 0)) for n in (2, 3))
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
        of_train, of_val = _shapes(task, train, val)
        self._train = ShapedData(of_train, len(train), lambda: tell("data"))
        self._val = ShapedData(of_val, min(len(val), eval_rows), lambda: tell("data"))

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


def _shapes(task: Task, train: Any, val: Any) -> tuple[BatchShape, BatchShape]:
    """Those of a task's data, looked through once for all predictions in a row."""
    global _seen
    if _seen is None or _seen[0]() is not task:
        _seen = weakref.ref(task), (BatchShape(train), BatchShape(val))
    return _seen[1]
