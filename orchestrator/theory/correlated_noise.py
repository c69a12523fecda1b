"""The error of a weighted sum of one noisy series whose noise fades over time, as a training curve's does."""

from __future__ import annotations

import math

import numpy as np

from orchestrator.theory.fieller import Array

MOST_POINTS = 200
LONGEST = 1 / 3
"""Correlation times up to this share of the series: slower noise looks like the trend."""
MOST_FREEDOM = 5
"""What a covariance guessed from one curve is worth, by simulation on the noisy quadratic."""


def error_of_sum(times: Array, values: Array, basis: Array, weights: Array) -> tuple[float, int]:
    r"""Standard error of sum_i weights_i values_i around a trend, under noise that decorrelates exponentially.

    Values are a combination of the columns of `basis` plus normal noise of covariance
    :math:`\sigma^2 e^{-|t_i - t_j| / \tau}` (an Ornstein-Uhlenbeck process). Both are estimated by restricted maximum
    likelihood, which allows for the part of the noise that the trend swallowed, and the variance of the sum is averaged
    over :math:`\tau` by likelihood. A short series tells little: the degrees of freedom are those of as many
    independent values as the series holds correlation times, less those of the trend, at most `MOST_FREEDOM`.

    Source: Harville 1977, "Maximum Likelihood Approaches to Variance Component Estimation".

    Args:
        times: ascending, ``[n]``, n > columns of `basis`.
        values: ``[n]``.
        basis: ``[n, k]``.
        weights: ``[n]``.

    Returns:
        The standard error, and degrees of freedom, 1 to `MOST_FREEDOM`.

    >>> rng = np.random.default_rng(0)
    >>> t, ones = np.arange(400.0), np.ones((400, 1))
    >>> error, _ = error_of_sum(t, rng.normal(size=400), ones, np.full(400, 1 / 400))
    >>> 0.04 < error < 0.07  # 1 / sqrt(400)
    True
    """
    step = -(-len(times) // MOST_POINTS)
    thinned = slice(None, None, step)
    t, y, x = times[thinned], values[thinned], basis[thinned]
    n, k = x.shape
    span = float(t[-1] - t[0])
    logs, variances, freedoms = [], [], []
    for tau in np.geomspace(0.2 * span / n, LONGEST * span, 25):
        root = np.linalg.cholesky(np.exp(-np.abs(t[:, None] - t) / tau) + 1e-9 * np.eye(n))
        whitened, design = np.linalg.solve(root, y), np.linalg.solve(root, x)
        trend, *_ = np.linalg.lstsq(design, whitened, rcond=None)
        variance = float(np.sum((whitened - design @ trend) ** 2)) / (n - k)
        variance = max(variance, 1e-300)
        spread = np.linalg.slogdet(design.T @ design)[1]
        logs.append(-0.5 * (n - k) * math.log(variance) - float(np.sum(np.log(np.diag(root)))) - 0.5 * float(spread))
        full = np.exp(-np.abs(times[:, None] - times) / tau)
        variances.append(variance * float(weights @ full @ weights))
        freedoms.append(min(n, span / (2.0 * tau)) - k)
    share = np.exp(np.array(logs) - max(logs))
    share /= np.sum(share)
    return math.sqrt(float(share @ variances)), round(float(share @ np.clip(freedoms, 1.0, MOST_FREEDOM)))
