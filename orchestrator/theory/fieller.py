"""Fieller's confidence interval for a ratio of two means, from block means so that autocorrelation is covered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class RatioInterval:
    """Interval of mean(x) / mean(y). `low` and `high` are None where it is not bounded: mean(y) may be 0.

    The standard errors and `t`, the two-sided quantile of Student's t with ``blocks - 1`` degrees of freedom, are
    those that the interval used; `correlation` is that of the two means.
    """

    x: float
    y: float
    x_se: float
    y_se: float
    correlation: float
    t: float
    low: float | None
    high: float | None


def ratio_interval(x: Array, y: Array, *, blocks: int, confidence: float) -> RatioInterval:
    r"""Fieller's interval: every :math:`\rho` for which :math:`\bar x - \rho \bar y` is not clearly different from 0.

    .. math::
        (\bar x - \rho \bar y)^2 \le t^2 (v_{xx} - 2 \rho v_{xy} + \rho^2 v_{yy})

    is a quadratic in :math:`\rho`, bounded if and only if :math:`\bar y^2 > t^2 v_{yy}`. The (co)variances of the means
    come from the means of consecutive blocks, which are nearly independent once a block is much longer than the
    autocorrelation; blocks may differ by one in length, and are weighted accordingly. Assumes that block means are
    about normal. Source: Fieller 1954, "Some problems in interval estimation".

    Args:
        x: finite, shape ``[n]``, in the order of measurement.
        y: finite, shape ``[n]``, measured together with `x`.
        blocks: number of blocks, 2 <= blocks <= n.
        confidence: probability of covering the true ratio, in (0, 1).

    >>> sample = np.random.default_rng(0).normal([3.0, 2.0], 0.5, size=(400, 2))
    >>> interval = ratio_interval(sample[:, 0], sample[:, 1], blocks=20, confidence=0.95)
    >>> interval.low < 1.5 < interval.high
    True
    """
    edges = np.linspace(0, len(x), blocks + 1).astype(np.int64)
    lengths = np.diff(edges)
    mean_x, mean_y = float(np.mean(x)), float(np.mean(y))
    # Deviations of block sums, in units of the overall mean.
    dx = (np.add.reduceat(x, edges[:-1]) - lengths * mean_x) / len(x)
    dy = (np.add.reduceat(y, edges[:-1]) - lengths * mean_y) / len(x)
    correction = blocks / (blocks - 1)
    vxx, vyy, vxy = (correction * float(np.dot(a, b)) for a, b in ((dx, dx), (dy, dy), (dx, dy)))
    t = float(special.stdtrit(blocks - 1, 0.5 + confidence / 2))

    low, high = bounds(mean_x, mean_y, vxx, vyy, vxy, t)
    return RatioInterval(
        x=mean_x,
        y=mean_y,
        x_se=math.sqrt(vxx),
        y_se=math.sqrt(vyy),
        correlation=max(-1.0, min(vxy / math.sqrt(vxx * vyy), 1.0)) if vxx > 0 and vyy > 0 else 0.0,
        t=t,
        low=low,
        high=high,
    )


def bounds(x: float, y: float, vxx: float, vyy: float, vxy: float, t: float) -> tuple[float | None, float | None]:
    """Fieller's interval of x / y from two means, their (co)variances and a quantile; None where it is not bounded.

    >>> bounds(4.0, 2.0, 0.0, 0.0, 0.0, 2.0)
    (2.0, 2.0)
    """
    a = y**2 - t**2 * vyy
    if not a > 0:
        return None, None
    b = x * y - t**2 * vxy
    # Non-negative in exact arithmetic where a > 0.
    root = math.sqrt(max(0.0, b * b - a * (x**2 - t**2 * vxx)))
    return (b - root) / a, (b + root) / a
