"""Optimizers of ``torch.optim`` by name, refused before start where name or options cannot work."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from orchestrator.config.names import nearest_names
from orchestrator.errors import ConfigError

# Where torch's fused kernels exist on CPU too.
_FUSED = frozenset({"SGD", "Adam", "AdamW"})
_NEEDS_OTHERS = frozenset({"nesterov"})  # momentum
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
    taken = {key: p for key, p in inspect.signature(cls).parameters.items() if key not in _GIVEN_BY_US}
    for key, value in options.items():
        if key == "lr":
            raise ConfigError(
                "the learning rate comes from the lr section", key="optimizer.lr", value=value, remedy="set lr.base"
            )
        if key not in taken:
            anew = f"remove it, or set the section anew, optimizer: {{name: {name}}}; its options are"
            raise ConfigError(
                f"{name} has no such option",
                key=f"optimizer.{key}",
                value=value,
                remedy=_nearest(key, list(taken), anew),
            )
        _check_kind(key, value, taken[key].default)
    # Each option alone first, so that the one at fault is named.
    for tried in (*({key: value} for key, value in options.items()), options):
        try:
            cls([nn.Parameter(torch.zeros(1))], lr=1e-3, **_tupled(tried))
        except Exception as error:
            one = next(iter(tried)) if len(tried) == 1 else None
            if tried is not options and one in _NEEDS_OTHERS:
                continue
            raise ConfigError(
                f"{name} refuses {'this' if one else 'these options together'}: {str(error).rstrip('.')}",
                key=f"optimizer.{one}" if one else "optimizer",
                value=options[one] if one else options,
                remedy=f"see torch.optim.{name}",
            ) from error


def _check_kind(key: str, value: Any, default: Any) -> None:
    """Refuse what torch would take for true, or fail over while it trains: text or true for a number, and the like."""
    if isinstance(default, bool):
        rule, holds, remedy = "must be true or false", isinstance(value, bool), "write true or false without quotes"
    elif isinstance(default, int | float):
        rule, holds, remedy = "must be a number", _is_number(value), "write a plain number, without quotes"
    elif isinstance(default, tuple) and all(_is_number(part) for part in default):
        rule = f"must be a list of {len(default)} numbers"
        holds = isinstance(value, list | tuple) and len(value) == len(default) and all(map(_is_number, value))
        remedy = f"write [{', '.join(map(str, default))}], which is the default"
    else:
        return
    if not holds:
        raise ConfigError(rule, key=f"optimizer.{key}", value=value, remedy=remedy)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | torch.Tensor) and not isinstance(value, bool)


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
    found = nearest_names(word, known)
    return f"did you mean {found[0]}?" if found else f"{otherwise} {', '.join(known)}"


def step(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """One update at the learning rate `lr`, which is set absolutely: nothing of an earlier value remains."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
