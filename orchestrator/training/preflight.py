"""A look at a task before anything is started: what it is, and whether it keeps its contract."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from orchestrator.errors import ConfigError, OrchestratorError, TaskError
from orchestrator.training.activation_checkpointing import checkpoint_activations
from orchestrator.training.registry import describe
from orchestrator.training.seeding import isolated, seed_everything
from orchestrator.training.task import Fetchable, Task

_SAMPLES = 4  # of the check that the loss is a sum
_CHECK_BYTES = 2 * 2**30  # a larger model is not built on the driver only to check its loss
_PAIR = "return (sum over the batch, number of samples or tokens summed over)"


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
    """Look at a task's data and model, and prove on a few samples that it keeps its contract.

    Raises:
        TaskError: its data is empty, a member raises or returns something else than it must, or its loss is no sum;
            names rule and remedy.
    """
    train = _call("train_data", task.train_data)
    val = _call("val_data", task.val_data)
    for name, data in (("train_data", train), ("val_data", val)):
        if _call(f"len({name})", functools.partial(len, data)) < 1:
            raise TaskError(
                "must hold at least one sample", key=f"task.{name}", value=0, remedy="check the task's data"
            )
    modes = _metric_modes(task)
    with isolated(torch.device("cpu")):
        parameters, size_bytes = model_size(task)
        if size_bytes <= _CHECK_BYTES:
            _call("train_data", functools.partial(_batch, train, [0]))
            _call("loss", lambda: check_sum(task))
            _call("evaluate", lambda: _check_evaluation(task, modes))
    return TaskFacts(
        train_samples=len(train),
        val_samples=len(val),
        metric_modes=modes,
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
    first = task.loss(model, _batch(task.val_data(), list(range(count))))
    once = _pair(task, "loss", first)
    if not (isinstance(first[0], torch.Tensor) and first[0].requires_grad):
        raise _breach(task, "loss", "must return a loss with gradient", "return the tensor, without detach or item")
    with torch.no_grad():
        twice = _pair(task, "loss", task.loss(model, _batch(task.val_data(), list(range(count)) * 2)))
    for name, one, two in zip(("loss", "weight"), once, twice, strict=True):
        # A loss that is not finite is a matter of training (it diverges), not of the contract.
        if abs(two - 2 * one) > 1e-3 * max(abs(two), abs(2 * one)) + 1e-12:
            raise _breach(
                task,
                "loss",
                f"must return sums, and {count} samples give the {name} {one:g}, the same ones twice {two:g}",
                'use reduction="sum" and return the number of samples or tokens summed over as the weight',
            )


def model_size(task: Task) -> tuple[int, int]:
    """Count and bytes of the model's parameters, without its memory where the model allows that.

    Raises:
        TaskError: the model cannot be built, is no module, or has nothing to train.
    """
    parameters = list(_built(task).parameters())
    return sum(p.numel() for p in parameters), sum(p.numel() * p.element_size() for p in parameters)


def check_checkpointed(task: Task, name: str) -> None:
    """Refuse to checkpoint the activations of modules that the model does not have.

    Raises:
        ConfigError: names the class, and the nearest that is there.
    """
    try:
        checkpoint_activations(_built(task), [name])
    except ValueError as error:
        rule, _, remedy = str(error).partition("; ")
        raise ConfigError(rule, key="training.checkpoint_activations", value=name, remedy=remedy) from None


def _built(task: Task) -> nn.Module:
    """The model, without its memory where it allows that, if it can be trained."""
    try:
        with torch.device("meta"):
            model: nn.Module = task.model()
    except Exception as error:
        # Some models compute with their initial values, which meta tensors do not have: those are built for real.
        if "overflow" in str(error).lower():
            raise _breach(task, "model", "is larger than any memory", "use a smaller model") from error
        model = _call("model", task.model)
    if not isinstance(model, nn.Module):
        raise _breach(task, "model", f"must be a torch.nn.Module, not {type(model).__name__}", "return the module")
    parameters = list(model.parameters())
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in parameters):
        raise _breach(task, "model", "has lazy layers, whose size is not known yet", "give every layer its sizes")
    if not any(p.requires_grad for p in parameters):
        raise _breach(task, "model", "has no parameter that can be trained", "return a model with requires_grad on")
    return model


def _metric_modes(task: Task) -> dict[str, Literal["min", "max"]]:
    modes = task.metric_modes
    remedy = 'write metric_modes = {"loss": "min"}, and "max" for a metric of which more is better'
    if not isinstance(modes, Mapping) or "loss" not in modes:
        raise _breach(task, "metric_modes", "must be a mapping that names loss", remedy)
    for name, mode in modes.items():
        if mode not in ("min", "max"):
            raise _breach(task, "metric_modes", f"must say min or max of {name}, not {mode!r}", remedy)
    return dict(modes)


def _check_evaluation(task: Task, modes: Mapping[str, str]) -> None:
    """Refuse an evaluation that would end the first trial: metrics missing, or no pairs."""
    seed_everything(0)
    model = task.model().eval()
    with torch.no_grad():
        found = task.evaluate(model, _batch(task.val_data(), [0]))
    if not isinstance(found, Mapping) or (missing := sorted(set(modes) - set(found))):
        rule = f"lacks {', '.join(missing)}" if isinstance(found, Mapping) else f"is a {type(found).__name__}"
        remedy = "return a mapping with every metric of metric_modes as (sum, weight)"
        raise _breach(task, "evaluate", f"must return every metric of metric_modes, and {rule}", remedy)
    for name in modes:
        _pair(task, "evaluate", found[name])


def _pair(task: Task, member: str, value: Any) -> tuple[float, float]:
    """A (sum, weight) as numbers."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        found = f"{len(value)} values" if isinstance(value, tuple | list) else type(value).__name__
        raise _breach(task, member, f"must return a sum and a weight, not {found}", _PAIR)
    for part in value:
        if isinstance(part, torch.Tensor) and part.numel() != 1:
            raise _breach(task, member, f"must return scalars, not a tensor of shape {tuple(part.shape)}", _PAIR)
    total, weight = (float(part.detach() if isinstance(part, torch.Tensor) else part) for part in value)
    if not 0 <= weight < math.inf:
        raise _breach(task, member, f"must return a finite weight of at least 0, not {weight:g}", _PAIR)
    return total, weight


def _batch(data: Any, indices: list[int]) -> Any:
    if not isinstance(data, Fetchable):
        return torch.utils.data.default_collate([data[index] for index in indices])
    return data.fetch(np.asarray(indices, dtype=np.int64), None)


def _breach(task: Task, member: str, rule: str, remedy: str) -> TaskError:
    return TaskError(rule, key=f"task.{member}", value=type(task).__name__, remedy=remedy)


def _call(what: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except OrchestratorError:
        raise
    except (Exception, SystemExit) as error:
        raise TaskError(
            f"{what} raised {describe(error)}", key="task.name", remedy="mend the task, or its options"
        ) from error
