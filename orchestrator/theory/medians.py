"""The median of repeated timings with an interval that assumes no distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from orchestrator.theory.critical_batch import Estimate


def median_of(values: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """The median, between the order statistics that enclose it at least as often as asked.

    As many of n independent values lie below the median as of n coin tosses fall heads, so the k-th least and the k-th
    largest enclose it with probability 1 - 2 P(X < k), X binomial(n, 1/2). Under 6 values none do at 95 %: the ends are
    then None.

    Source: Hahn & Meeker 1991, "Statistical Intervals", section 5.2.

    Args:
        values: at least one, finite.
        confidence: in (0, 1).

    Raises:
        ValueError: for no values, or a confidence out of range.

    >>> median_of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    Estimate(value=4.5, low=1.0, high=8.0)
    >>> median_of([1.0, 2.0, 9.0])
    Estimate(value=2.0, low=None, high=None)
    """
    if not values or not all(map(math.isfinite, values)):
        raise ValueError("a median needs at least one value, all of them finite")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence = {confidence!r}: must be above 0 and below 1, such as 0.95")
    ordered, n = sorted(values), len(values)
    # The largest k with P(X < k) <= (1 - confidence) / 2.
    k = int(stats.binom.ppf((1.0 - confidence) / 2.0, n, 0.5))
    if stats.binom.cdf(k - 1, n, 0.5) > (1.0 - confidence) / 2.0:
        k -= 1
    value = float(np.median(ordered))
    if k < 1:
        return Estimate(value=value)
    return Estimate(value=value, low=float(ordered[k - 1]), high=float(ordered[n - k]))
