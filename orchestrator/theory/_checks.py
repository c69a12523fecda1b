"""Argument checks shared by the theory modules: each raises ValueError with name, value and rule.

What a value means, and the remedy, stays with the function that owns it.
"""

from __future__ import annotations

import math


def whole(name: str, value: int, minimum: int = 1) -> int:
    """`value` if it is a whole number of at least `minimum`; bool and float are refused."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name} = {value!r}: must be a whole number of at least {minimum}")
    return value


def positive(name: str, value: float) -> float:
    """`value` if it is a finite number above 0; bool is refused."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} = {value!r}: must be a finite number above 0")
    return value
