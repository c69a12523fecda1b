"""The slope of a series that wanders about its trend while it is measured with noise, as a training loss does."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from orchestrator.theory.fieller import Array

MOST_POINTS = 200
SHARES = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 31)])
"""Variance that the walk gathers over the whole series, as a multiple of that of the noise of one point."""


def slope_error(times: Array, values: Array, confidence: float) -> float:
    r"""Half-width of the interval of the least-squares slope of `values` against `times`.

    .. math:: y_i = a + b t_i + w(t_i) + e_i

    with a Brownian walk w (what an optimizer's steps do to the weights is never undone) and independent noise e (of the
    batch that the loss was seen on). Their variances are averaged over by restricted likelihood, which allows for the
    part of the walk that the slope swallowed; the quantile is Student's with n - 2 degrees of freedom.

    Source: Harville 1977, "Maximum Likelihood Approaches to Variance Component Estimation".

    Args:
        times: strictly ascending, ``[n]``, n >= 4.
        values: ``[n]``.
        confidence: in (0, 1).

    >>> rng = np.random.default_rng(0)
    >>> t = np.arange(100.0)
    >>> walk = np.cumsum(rng.normal(size=100))  # of which the slope has standard error 0.11
    >>> 0.15 < slope_error(t, walk, 0.95) < 0.4, slope_error(t, rng.normal(size=100), 0.95) < 0.02
    (True, True)
    """
    thinned = slice(None, None, -(-len(times) // MOST_POINTS))
    t, y = times[thinned], values[thinned]
    n = len(t)
    t = (t - t[0]) / (t[-1] - t[0])
    basis = np.stack([np.ones(n), t], axis=1)
    walk = np.minimum(t[:, None], t)
    weights = (t - np.mean(t)) / np.sum((t - np.mean(t)) ** 2)
    logs, variances = [], []
    for share in SHARES:
        covariance = np.eye(n) + share * walk
        root = np.linalg.cholesky(covariance)
        whitened, design = np.linalg.solve(root, y), np.linalg.solve(root, basis)
        line, *_ = np.linalg.lstsq(design, whitened, rcond=None)
        variance = max(float(np.sum((whitened - design @ line) ** 2)) / (n - 2), 1e-300)
        spread = float(np.linalg.slogdet(design.T @ design)[1])
        logs.append(-0.5 * (n - 2) * math.log(variance) - float(np.sum(np.log(np.diag(root)))) - 0.5 * spread)
        variances.append(variance * float(weights @ covariance @ weights))
    likely = np.exp(np.array(logs) - max(logs))
    error = math.sqrt(float(likely @ variances) / float(np.sum(likely))) / float(times[-1] - times[0])
    return error * float(special.stdtrit(n - 2, 0.5 + confidence / 2))
