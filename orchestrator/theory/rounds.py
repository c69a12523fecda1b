"""Estimates from rounds of interleaved measurements: how far rounds differ is what the machine's noise adds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from orchestrator.theory.critical_batch import Estimate


def typical(values: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """The geometric mean of a positive quantity's rounds, with the interval of Student's t on their logarithms.

    Rounds, not single updates, are the independent draws: what disturbs a shared machine lasts for many updates. One
    round has no interval.

    Args:
        values: one a round, > 0.
        confidence: in (0, 1).

    Raises:
        ValueError: for no values, or one that is not finite and above 0.

    >>> typical([2.0, 8.0]).value
    4.0
    """
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError("rounds must give at least one value, all of them finite and above 0")
    logs = np.log(values)
    mean, n = float(np.mean(logs)), len(values)
    if n == 1:
        return Estimate(value=math.exp(mean))
    half = float(stats.t.ppf(0.5 + 0.5 * confidence, n - 1)) * float(np.std(logs, ddof=1)) / math.sqrt(n)
    return Estimate(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def ratio(above: Sequence[float], below: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """How many times the first quantity is the second, both measured in the same rounds: what slows a whole round down
    cancels out.

    Raises:
        ValueError: for unequal numbers of rounds, or as `typical`.

    >>> ratio([2.0, 20.0], [1.0, 10.0])
    Estimate(value=2.0, low=2.0, high=2.0)
    """
    return typical([a / b for a, b in zip(above, below, strict=True)], confidence=confidence)
