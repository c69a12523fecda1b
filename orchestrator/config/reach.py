"""What trials of a sweep can come to have: the values that the space, or else the spec itself, allows for a key."""

from __future__ import annotations

from typing import Any

from orchestrator.config.space import Choices, DurationRange, Parameter
from orchestrator.config.spec import SweepSpec


class Reach:
    """The reachable values of every dotted key of `spec`."""

    def __init__(self, spec: SweepSpec) -> None:
        self.spec = spec
        self._written = spec.to_dict()

    def where(self, key: str) -> str:
        """The key to name in a message: ``space.<key>`` where the space decides."""
        return f"space.{key}" if key in self.spec.space else key

    def values(self, key: str) -> tuple[Any, ...]:
        """Every reachable value of `key`; of a float range without step, which has no end of them, both ends."""
        parameter = self._parameter(key)
        if parameter is None:
            return (self._setting(key),)
        values = None if isinstance(parameter, DurationRange) else parameter.values()
        return self.ends(key) if values is None else values

    def ends(self, key: str) -> tuple[Any, ...]:
        """Where a range begins and ends; every value of a list."""
        parameter = self._parameter(key)
        if parameter is None:
            return (self._setting(key),)
        if isinstance(parameter, Choices):
            return parameter.values()
        if isinstance(parameter, DurationRange):
            return (parameter.at(parameter.low), parameter.at(parameter.high))
        return (parameter.low, parameter.high)

    def count(self, key: str) -> int:
        """Number of values that `values` would give, without listing them."""
        parameter = self._parameter(key)
        return 1 if parameter is None else parameter.size or 2

    def smallest(self, key: str) -> Any:
        """The least reachable number; None if there is none."""
        return min((value for value in self.ends(key) if value is not None), default=None)

    def largest(self, key: str) -> Any:
        """The greatest reachable number; None if there is none."""
        return max((value for value in self.ends(key) if value is not None), default=None)

    def _parameter(self, key: str) -> Parameter | None:
        return self.spec.space.get(key)

    def _setting(self, key: str) -> Any:
        value: Any = self._written
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value
