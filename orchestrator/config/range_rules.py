"""What makes a range of numbers valid: its ends, its step, its logarithm, its powers.

Steps are checked in decimal arithmetic, so that 0.1 to 0.7 by 0.2 means what it says.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from orchestrator.config.refusal import Refusal


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number; true is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Whether `value` is an int; true is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def exact(value: float) -> Decimal:
    """The decimal number that was written: 0.1 as one tenth."""
    return Decimal(repr(value))


def check_ends(low: Any, high: Any) -> None:
    """Refuse ends that are no numbers, inverted or equal."""
    for end in (low, high):
        if not is_number(end):
            raise Refusal("the ends of a range must be finite numbers", value=end, remedy="write plain numbers")
    if low > high:
        raise Refusal("the range is inverted", value=_pair(low, high), remedy=f"write low: {high} and high: {low}")
    if low == high:
        raise Refusal(
            "the range holds one value only", value=_pair(low, high), remedy="write the value itself, outside the space"
        )


def check_log(low: float, log: bool, step: float | None) -> None:
    """Refuse a logarithm that touches 0 or comes with a step."""
    if not log:
        return
    if low <= 0:
        raise Refusal("a log range must start above 0", key="low", value=low, remedy="raise low, or remove log")
    if step is not None:
        raise Refusal(
            "a log range has no step", key="step", value=step, remedy="remove log or step, or list the values"
        )


def check_step(low: float, high: float, step: float) -> None:
    """Refuse a step that is not positive or does not land on `high`."""
    if not is_number(step) or step <= 0:
        raise Refusal("must be a number above 0", key="step", value=step, remedy="leave it out for no step")
    if (exact(high) - exact(low)) % exact(step) == 0:
        return
    whole_steps = steps(low, high, step)
    kind = type(high)
    below, above = (kind(exact(low) + n * exact(step)) for n in (whole_steps, whole_steps + 1))
    ends = f"{below} or {above}" if whole_steps else f"{above}"
    rule = f"steps of {step} from {low} do not reach high {high}"
    raise Refusal(rule, key="step", value=step, remedy=f"write high: {ends}")


def steps(low: float, high: float, step: float) -> int:
    """Whole steps between the ends."""
    return int((exact(high) - exact(low)) // exact(step))


def powers_around(value: int, base: int) -> tuple[int | None, int]:
    """The largest power of `base` up to `value`, None if there is none, and the smallest from there on."""
    power = 1
    while power * base <= value:
        power *= base
    if power > value:
        return None, power
    return power, power if power == value else power * base


def _pair(low: Any, high: Any) -> dict[str, Any]:
    return {"low": low, "high": high}
