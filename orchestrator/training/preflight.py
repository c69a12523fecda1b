"""A look at a task before anything is started: what it is, and whether it keeps its contract."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from orchestrator.errors import OrchestratorError, TaskError
from orchestrator.training.seeding import isolated, seed_everything
from orchestrator.training.task import Fetchable, Task

_SAMPLES = 4  # of the check that the loss is a sum
_CHECK_BYTES = 2 * 2**30  # a larger model is not built on the driver only to check its loss


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """What the orchestrator needs to know of a task. `parameters` counts those of the model."""

    train_samples: int
    val_samples: int
    metric_modes: dict[str, Literal["min", "max"]]
    fingerprint: str
    parameters: int
    parameter_bytes: int


def check_task(task: Task) -> TaskFacts:
    """Look at a task's data and model, and prove on a few samples that its loss is a sum.

    Raises:
        TaskError: its data is empty, a member raises, or its loss is no sum; names rule and remedy.
    """
    train = _call("train_data", task.train_data)
    val = _call("val_data", task.val_data)
    for name, data in (("train_data", train), ("val_data", val)):
        if _call(f"len({name})", functools.partial(len, data)) < 1:
            raise TaskError(
                "must hold at least one sample", key=f"task.{name}", value=0, remedy="check the task's data"
            )
    with isolated(torch.device("cpu")):
        parameters, size_bytes = _size(task)
        if size_bytes <= _CHECK_BYTES:
            _call("loss", lambda: check_sum(task))
    return TaskFacts(
        train_samples=len(train),
        val_samples=len(val),
        metric_modes=dict(task.metric_modes),
        fingerprint=_call("fingerprint", task.fingerprint),
        parameters=parameters,
        parameter_bytes=size_bytes,
    )


def check_sum(task: Task) -> None:
    """Refuse a loss that is a mean: twice the batch must be twice the loss and twice the weight.

    Takes validation samples, so that random augmentation plays no part, and evaluation mode, so that dropout does not.

    Raises:
        TaskError: names both losses.
    """
    seed_everything(0)
    model = task.model().eval()
    count = min(_SAMPLES, len(task.val_data()))
    with torch.no_grad():
        once = [float(part) for part in task.loss(model, _batch(task, list(range(count))))]
        twice = [float(part) for part in task.loss(model, _batch(task, list(range(count)) * 2))]
    for name, one, two in zip(("loss", "weight"), once, twice, strict=True):
        if abs(two - 2 * one) > 1e-3 * max(abs(two), abs(2 * one)) + 1e-12:
            raise TaskError(
                f"must return sums, and {count} samples give the {name} {one:g}, the same ones twice {two:g}",
                key="task.loss",
                value=type(task).__name__,
                remedy='use reduction="sum" and return the number of samples or tokens summed over as the weight',
            )


def _batch(task: Task, indices: list[int]) -> Any:
    data = task.val_data()
    if isinstance(data, Fetchable):
        return data.fetch(np.asarray(indices, dtype=np.int64), None)
    return torch.utils.data.default_collate([data[index] for index in indices])


def _size(task: Task) -> tuple[int, int]:
    """Count and bytes of the model's parameters, without its memory where the model allows that."""
    try:
        with torch.device("meta"):
            model: nn.Module = task.model()
    except Exception:  # noqa: BLE001  some models compute with their initial values, which meta tensors do not have
        model = _call("model", task.model)
    parameters = list(model.parameters())
    return sum(p.numel() for p in parameters), sum(p.numel() * p.element_size() for p in parameters)


def _call(what: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except OrchestratorError:
        raise
    except Exception as error:
        raise TaskError(
            f"{what} raised {type(error).__name__}: {error}", key="task.name", remedy="mend the task"
        ) from error
