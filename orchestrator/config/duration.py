"""A span of training with its unit: a share of the budget, samples, or updates."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from orchestrator.config.refusal import Refusal

Unit = Literal["share", "samples", "updates"]

FORMS = '"5%" of the budget, "2000 samples" or "50 updates"'
_UNITS: dict[str, Unit] = {
    "%": "share",
    "sample": "samples",
    "samples": "samples",
    "update": "updates",
    "updates": "updates",
}
_PATTERN = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Duration:
    """A span of training.

    Nothing at all is the same in every unit, so a `value` of 0 always carries the unit samples.

    Args:
        value: a share in [0, 1], or a whole number of samples or updates, at least 0.
        unit: ``share`` (of the sample budget), ``samples`` or ``updates``.

    Raises:
        Refusal: a ValueError, if the value is out of its range.

    >>> str(Duration.parse("5%")), Duration.parse("5%").samples(budget_samples=20000, global_batch=64)
    ('5%', 1000)
    >>> Duration.parse("50 updates").samples(budget_samples=20000, global_batch=64)
    3200
    """

    value: float
    unit: Unit

    def __post_init__(self) -> None:
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise Refusal("must be a finite number", value=value, remedy=f"write {FORMS}")
        if value < 0:
            raise Refusal("must not be negative", value=value, remedy=f"write {FORMS}")
        if self.unit == "share" and value > 1:
            raise Refusal("a share of the budget is at most 100%", value=f"{_percent(value)}%", remedy="write less")
        if self.unit != "share":
            if value != int(value):
                shown = f"{value} {self.unit}"
                raise Refusal(f"{self.unit} are whole numbers", value=shown, remedy="write it without a fraction")
            object.__setattr__(self, "value", int(value))
        if value == 0:
            object.__setattr__(self, "value", 0)
            object.__setattr__(self, "unit", "samples")

    @classmethod
    def parse(cls, raw: Any) -> Duration:
        """Read ``"5%"``, ``"2000 samples"``, ``"50 updates"`` or 0. Raises Refusal on anything else."""
        if isinstance(raw, Duration):
            return raw
        if isinstance(raw, int | float) and not isinstance(raw, bool):
            if raw == 0:
                return cls(value=0, unit="samples")
            raise Refusal("a number alone has no unit", value=raw, remedy=f"write {FORMS}")
        match = _PATTERN.fullmatch(raw) if isinstance(raw, str) else None
        if match is None:
            raise Refusal("is not a duration", value=raw, remedy=f"write {FORMS}")
        number, name = Decimal(match[1]), match[2]
        if name == "" and number == 0:
            return cls(value=0, unit="samples")
        if name not in _UNITS:
            rule = f"unknown unit {name!r}" if name else "a number alone has no unit"
            raise Refusal(rule, value=raw, remedy=f"write {FORMS}")
        try:
            # Decimal keeps 7% at 0.07, the float nearest to what was written.
            return cls(value=float(number / 100 if name == "%" else number), unit=_UNITS[name])
        except Refusal as refusal:
            raise Refusal(refusal.rule, value=raw, remedy=refusal.remedy) from None

    def samples(self, *, budget_samples: int, global_batch: int) -> int:
        """This span in samples: a share is rounded to the nearest sample, an update is `global_batch` samples."""
        if self.unit == "share":
            return round(self.value * budget_samples)
        return int(self.value) * (global_batch if self.unit == "updates" else 1)

    def __str__(self) -> str:
        if self.value == 0:
            return "0"
        return f"{_percent(self.value)}%" if self.unit == "share" else f"{self.value} {self.unit}"


def _percent(share: float) -> str:
    return format((Decimal(repr(float(share))) * 100).normalize(), "f")
