"""The parameters of a search space: what may be tried for one key, both ends included.

A parameter knows its values, not its key. Values are plain: numbers, text, booleans or null, as a YAML file has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.config.duration import Duration, Unit
from orchestrator.config.range_rules import (
    check_ends,
    check_log,
    check_step,
    exact,
    is_number,
    is_whole,
    powers_around,
    steps,
)
from orchestrator.config.refusal import Refusal


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A list of values without order.

    Args:
        options: at least one; all numbers, all text or all booleans, null beside any of them.
    """

    options: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.options:
            raise Refusal("a list of choices must not be empty", value=[], remedy="list at least one value to try")
        kinds = {_kind(value) for value in self.options} - {"null"}
        if len(kinds) > 1:
            rule = f"choices must be of one type, these are {' and '.join(sorted(kinds))}"
            raise Refusal(rule, value=list(self.options), remedy="write them all as numbers or all as text")
        for i, value in enumerate(self.options):
            if value in self.options[:i]:
                raise Refusal(f"choice {value!r} is given twice", value=list(self.options), remedy="list it once")

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.options)

    def values(self) -> tuple[Any, ...]:
        """All choices, in the order in which they were given."""
        return self.options

    def contains(self, value: Any) -> bool:
        """Whether `value` is one of the choices; true is no 1."""
        return any(value == option and _kind(value) == _kind(option) for option in self.options)

    def to_form(self) -> Any:
        """As it stands in YAML."""
        return list(self.options)


@dataclass(frozen=True, kw_only=True)
class FloatRange:
    """Real numbers from `low` to `high`, even in the logarithm with `log`, or `step` apart."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        check_ends(self.low, self.high)
        check_log(self.low, self.log, self.step)
        if self.step is not None:
            check_step(self.low, self.high, self.step)

    @property
    def size(self) -> int | None:
        """Number of values; None if they cannot be enumerated."""
        return None if self.step is None else steps(self.low, self.high, self.step) + 1

    def values(self) -> tuple[float, ...] | None:
        """All values from `low` to `high`, or None without a step."""
        if self.step is None or self.size is None:
            return None
        low, step = exact(self.low), exact(self.step)
        return tuple(float(low + i * step) for i in range(self.size))

    def contains(self, value: Any) -> bool:
        """Whether `value` is a number that can be suggested."""
        if not is_number(value) or not self.low <= value <= self.high:
            return False
        return self.step is None or (exact(value) - exact(self.low)) % exact(self.step) == 0

    def to_form(self) -> Any:
        """As it stands in YAML."""
        return _form(self.low, self.high, log=self.log or None, step=self.step)


@dataclass(frozen=True, kw_only=True)
class IntRange:
    """Whole numbers from `low` to `high`, even in the logarithm with `log`, or `step` apart."""

    low: int
    high: int
    log: bool = False
    step: int = 1

    def __post_init__(self) -> None:
        check_ends(self.low, self.high)
        check_log(self.low, self.log, None if self.step == 1 else self.step)
        check_step(self.low, self.high, self.step)

    @property
    def size(self) -> int:
        """Number of values."""
        return (self.high - self.low) // self.step + 1

    def values(self) -> tuple[int, ...]:
        """All values from `low` to `high`."""
        return tuple(range(self.low, self.high + 1, self.step))

    def contains(self, value: Any) -> bool:
        """Whether `value` is a whole number that can be suggested."""
        return is_whole(value) and value in range(self.low, self.high + 1, self.step)

    def to_form(self) -> Any:
        """As it stands in YAML."""
        return _form(self.low, self.high, log=self.log or None, step=None if self.step == 1 else self.step)


@dataclass(frozen=True, kw_only=True)
class PowerRange:
    """Powers of `base` from `low` to `high`, both of which are such powers."""

    low: int
    high: int
    base: int = 2

    def __post_init__(self) -> None:
        check_ends(self.low, self.high)
        if not is_whole(self.base) or self.base < 2:
            raise Refusal("must be a whole number of at least 2", key="powers_of", value=self.base, remedy="write 2")
        for end in (self.low, self.high):
            below, above = powers_around(end, self.base)
            if below != end:
                near = f"write {below} or {above}" if below else f"write {above}"
                raise Refusal(f"{end} is no power of {self.base}", value=self.to_form(), remedy=near)

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.values())

    def values(self) -> tuple[int, ...]:
        """All powers from `low` to `high`."""
        values = [self.low]
        while values[-1] < self.high:
            values.append(values[-1] * self.base)
        return tuple(values)

    def contains(self, value: Any) -> bool:
        """Whether `value` is one of the powers."""
        return is_whole(value) and value in self.values()

    def to_form(self) -> Any:
        """As it stands in YAML."""
        return _form(self.low, self.high, powers_of=self.base)


@dataclass(frozen=True, kw_only=True)
class DurationRange:
    """Durations of one unit: `low` and `high` are shares in [0, 1], or whole numbers of samples or updates."""

    low: float
    high: float
    unit: Unit

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            Duration(value=end, unit=self.unit)
        check_ends(self.low, self.high)

    @property
    def size(self) -> int | None:
        """Number of values; None for shares, which cannot be enumerated."""
        return None if self.unit == "share" else int(self.high - self.low) + 1

    def at(self, number: float) -> str:
        """The duration with this `number` of units, as it stands in YAML: ``at(0.05)`` of shares is "5%"."""
        return str(Duration(value=number, unit=self.unit))

    def values(self) -> tuple[str, ...] | None:
        """All durations from `low` to `high`, or None for shares."""
        if self.unit == "share":
            return None
        return tuple(self.at(number) for number in range(int(self.low), int(self.high) + 1))

    def contains(self, value: Any) -> bool:
        """Whether `value`, a duration as it stands in YAML, can be suggested."""
        try:
            duration = Duration.parse(value)
        except Refusal:
            return False
        return (duration.unit == self.unit or duration.value == 0) and self.low <= duration.value <= self.high

    def to_form(self) -> Any:
        """As it stands in YAML."""
        return _form(self.at(self.low) if self.low else 0, self.at(self.high))


Parameter = Choices | FloatRange | IntRange | PowerRange | DurationRange


def _form(low: Any, high: Any, **rest: Any) -> dict[str, Any]:
    return {"low": low, "high": high} | {name: value for name, value in rest.items() if value is not None}


def _kind(value: Any) -> Literal["null", "booleans", "numbers", "text", "lists"]:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "booleans"
    if isinstance(value, int | float):
        return "numbers"
    return "text" if isinstance(value, str) else "lists"
