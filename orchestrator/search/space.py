"""A spec's space as Optuna distributions, and Optuna's parameters back as values of the spec. Both ends survive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from orchestrator.config.duration import Duration
from orchestrator.config.space import Choices, DurationRange, FloatRange, IntRange, Parameter, PowerRange
from orchestrator.credentials import mask


def to_distribution(parameter: Parameter) -> BaseDistribution:
    """The Optuna distribution that samples a parameter.

    A power range is sampled by its exponent and a duration range by its number; choices that are no scalars travel as
    JSON, and addresses without their credentials, for the study is on disk. `from_optuna` is the inverse for values.

    >>> to_distribution(PowerRange(low=16, high=256, base=2))
    IntDistribution(high=8, log=False, low=4, step=1)
    """
    match parameter:
        case Choices(options=options):
            return CategoricalDistribution([_to_scalar(value) for value in options])
        case PowerRange(low=low, high=high, base=base):
            return IntDistribution(_exponent(low, base), _exponent(high, base))
        case IntRange(low=low, high=high, log=log, step=step):
            return IntDistribution(low, high, log=log, step=step)
        case DurationRange(low=low, high=high, unit="share"):
            return FloatDistribution(low, high)
        case DurationRange(low=low, high=high):
            return IntDistribution(int(low), int(high))
        case FloatRange(low=low, high=high, log=log, step=step):
            return FloatDistribution(low, high, log=log, step=step)
    raise TypeError(f"no distribution for {parameter!r}")


def from_optuna(parameter: Parameter, value: Any) -> Any:
    """The value of the spec that an Optuna parameter value stands for."""
    match parameter:
        case Choices(options=options):
            return next(choice for choice in options if _same(_to_scalar(choice), value))
        case PowerRange(base=base):
            return base ** int(value)
        case DurationRange(unit="share", low=low, high=high):
            return parameter.at(min(high, max(low, float(f"{value:.3g}"))))  # more digits only clutter every table
        case DurationRange():
            return parameter.at(value)
        case IntRange():
            return int(value)
    return value


def to_optuna(parameter: Parameter, value: Any) -> Any:
    """The Optuna parameter value of a value of the spec, as `from_optuna` reads it."""
    match parameter:
        case Choices():
            return _to_scalar(value)
        case PowerRange(base=base):
            return _exponent(value, base)
        case DurationRange():
            return Duration.parse(value).value
    return value


def decode(space: Mapping[str, Parameter], params: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's Optuna parameters as values of the spec, by dotted key, in the space's order."""
    return {key: from_optuna(parameter, params[key]) for key, parameter in space.items()}


def grid(space: Mapping[str, Parameter]) -> dict[str, list[Any]]:
    """Every Optuna value of every parameter, for a grid. The config has made sure that all are finite."""
    return {key: [to_optuna(p, value) for value in p.values() or ()] for key, p in space.items()}


def _exponent(value: int, base: int) -> int:
    exponent = 0
    while base**exponent < value:
        exponent += 1
    return exponent


def _to_scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    return mask(value if isinstance(value, str) else json.dumps(value, sort_keys=True))


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
