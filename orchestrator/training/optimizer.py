"""Optimizers of ``torch.optim`` by name, refused before start where name or options cannot work."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from orchestrator.errors import ConfigError

# Classes that move the weights by the gradient's sign or its running moments: linear scaling rules are not for them.
_NOT_ADAPTIVE = frozenset({"SGD", "ASGD"})
# Where torch's fused kernels exist on CPU too; they were measured to halve a small model's step.
_FUSED = frozenset({"SGD", "Adam", "AdamW"})
_GIVEN_BY_US = frozenset({"params", "self", "lr"})


def check_optimizer(name: str, options: dict[str, Any]) -> None:
    """Refuse an optimizer that cannot be built, or stepped by our loop.

    Args:
        name: a class of ``torch.optim``, such as ``AdamW``.
        options: its keyword arguments except ``lr``, which the learning-rate plan sets.

    Raises:
        ConfigError: for an unknown name or option (with the nearest valid one), ``lr``, an option's value that the
            class refuses, or a class that needs a closure or sparse gradients.
    """
    cls = _class(name)
    known = [key for key in inspect.signature(cls).parameters if key not in _GIVEN_BY_US]
    for key, value in options.items():
        if key == "lr":
            raise ConfigError(
                "the learning rate comes from the lr section", key="optimizer.lr", value=value, remedy="set lr.base"
            )
        if key not in known:
            raise ConfigError(
                f"{name} has no such option",
                key=f"optimizer.{key}",
                value=value,
                remedy=_nearest(key, known, "its options are"),
            )
    try:
        cls([nn.Parameter(torch.zeros(1))], lr=1e-3, **_tupled(options))
    except Exception as error:
        raise ConfigError(
            f"{name} refuses these options: {error}", key="optimizer", value=options, remedy=f"see torch.optim.{name}"
        ) from error


def build_optimizer(
    name: str, options: dict[str, Any], parameters: Iterable[nn.Parameter], *, lr: float
) -> torch.optim.Optimizer:
    """The optimizer over `parameters`; torch's fused kernels are used where they exist and nothing else is asked for.

    Raises:
        ConfigError: as `check_optimizer`.
    """
    check_optimizer(name, options)
    parameters = list(parameters)
    options = _tupled(options)
    if name in _FUSED and not {"fused", "foreach", "differentiable", "capturable"} & set(options):
        options["fused"] = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    built: torch.optim.Optimizer = _class(name)(parameters, lr=lr, **options)
    return built


def is_adaptive(name: str) -> bool:
    """Whether steps of this class do not grow in proportion to the gradient, as Adam's do not.

    Raises:
        ConfigError: for an unknown name.
    """
    _class(name)
    return name not in _NOT_ADAPTIVE


def _class(name: str) -> Any:
    names = [
        key
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    ]
    if name not in names:
        raise ConfigError(
            "must be a class of torch.optim",
            key="optimizer.name",
            value=name,
            remedy=_nearest(name, sorted(names), "choose one of"),
        )
    cls = getattr(torch.optim, name)
    if inspect.signature(cls.step).parameters["closure"].default is inspect.Parameter.empty:
        raise ConfigError(
            "it evaluates the loss several times a step, which one reduction an update does not allow",
            key="optimizer.name",
            value=name,
            remedy="choose a first-order class such as SGD or AdamW",
        )
    if name == "SparseAdam":
        raise ConfigError(
            "it needs sparse gradients, and gradients here are dense",
            key="optimizer.name",
            value=name,
            remedy="choose Adam",
        )
    return cls


def _tupled(options: dict[str, Any]) -> dict[str, Any]:
    """YAML and JSON know lists only, and torch wants ``betas`` as a tuple."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def _nearest(word: str, known: list[str], otherwise: str) -> str:
    lowered = {key.lower(): key for key in known}
    found = difflib.get_close_matches(word.lower(), lowered, n=1)
    return f"did you mean {lowered[found[0]]}?" if found else f"{otherwise} {', '.join(known)}"


def step(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """One update at the learning rate `lr`, which is set absolutely: nothing of an earlier value remains."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
