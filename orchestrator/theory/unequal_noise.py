"""Whether seeds scatter alike at every batch, and how sure a fit with equal weights is where they do not.

Weights from a few seeds would be mostly chance, and the interval of a fit that takes them as exact too narrow, also
where variances are shrunk to their common one first (Smyth 2004). So every run weighs the same, and only the error is
made of each batch's own variance; ``benchmarks/coverage.py`` counts how often the interval holds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from orchestrator.theory.fieller import Array
from orchestrator.theory.hyperbola import LEAST_VARIANCE, Data
from orchestrator.theory.observation import Observation

UNEQUAL_P = 0.5
"""Below this probability of scatters as different by chance, each batch is taken by its own. A few seeds tell apart so
little that a usual 0.05 would pool a noise three times as large at one end as at the other more often than not."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What seeds tell of the variance of ln(samples) of one run; all ``[batches]``, or ``[]``.

    Attributes:
        batch: ascending.
        variance: at each; the common one where a batch has no two runs.
        dof: degrees of freedom behind each.
        pooled: the common one.
    """

    batch: Array
    variance: Array
    dof: Array
    pooled: float

    def at(self, batch: Array) -> tuple[Array, Array]:
        """Variance and degrees of freedom at each of some of its batches, ``[n]``."""
        index = np.searchsorted(self.batch, batch)
        return self.variance[index], self.dof[index]


def noise_of(runs: Sequence[Observation]) -> Noise | None:
    """What the seeds of each batch tell of its scatter; None where fewer than two batches tell anything.

    Batches with censored runs tell nothing: what arrived in time scatters less. Standard errors that are known exactly
    leave nothing to tell.
    """
    batches = sorted({run.global_batch for run in runs})
    squares: list[float] = []
    dofs: list[int] = []
    for batch in batches:
        here = [run for run in runs if run.global_batch == batch]
        if any(run.censored for run in here):
            squares.append(0.0)
            dofs.append(0)
        elif any(run.se_log is not None for run in here):
            if any(run.se_dof is None for run in here):
                return None
            told = [(run.se_log or 0.0, run.se_dof or 0) for run in here]
            squares.append(sum(dof * (dof + 1) * error**2 for error, dof in told))
            dofs.append(sum(dof for _, dof in told))
        else:
            logs = np.log([run.samples for run in here])
            squares.append(float(np.sum((logs - np.mean(logs)) ** 2)))
            dofs.append(len(here) - 1)
    own, freedom = np.array(squares), np.array(dofs, dtype=np.float64)
    told_by = freedom > 0
    if np.sum(told_by) < 2:
        return None
    total = float(np.sum(freedom))
    pooled = max(float(np.sum(own)) / total, LEAST_VARIANCE)
    variance = np.where(told_by, own / np.maximum(freedom, 1.0), pooled)
    return Noise(
        batch=np.array(batches, dtype=np.float64),
        variance=np.maximum(variance, LEAST_VARIANCE),
        dof=np.where(told_by, freedom, total),
        pooled=pooled,
    )


def unequal(noise: Noise) -> bool:
    """Whether the variances differ by more than chance (Bartlett 1937, `UNEQUAL_P`).

    >>> def runs(sds):
    ...     return [Observation(global_batch=4**i, samples=math.exp(sd * x)) for i, sd in enumerate(sds)
    ...             for x in (-1, -0.4, 0.3, 1)]
    >>> unequal(noise_of(runs([0.1, 0.11, 0.09]))), unequal(noise_of(runs([0.05, 0.05, 0.3])))
    (False, True)
    """
    own = noise.dof < np.sum(noise.dof)
    variance, dof = noise.variance[own], noise.dof[own]
    groups, total = len(variance), float(np.sum(dof))
    statistic = total * math.log(noise.pooled) - float(np.sum(dof * np.log(variance)))
    correction = 1.0 + (float(np.sum(1.0 / dof)) - 1.0 / total) / (3.0 * (groups - 1))
    return float(stats.chi2.sf(statistic / correction, groups - 1)) < UNEQUAL_P


def with_own_noise(data: Data, noise: Noise, log_bcrit: float) -> tuple[Data, float, Noise]:
    r"""The data with the one noise that tells the critical batch's error, its degrees of freedom, and `noise` over it.

    .. math:: \sigma^2 = \frac{\sum_b u_b s_b^2}{\sum_b u_b}, \quad u_b = w_b (g_b - \bar g)^2, \qquad
        \nu = \frac{(\sum_b u_b s_b^2)^2}{\sum_b (u_b s_b^2)^2 / \nu_b}

    with g_b the slope of ln E by the log critical batch and w_b the weights. The fit stays as it is; its variance is
    that of a sum of means with variances of their own (Satterthwaite 1946, as in Welch's test).

    Args:
        data: of the runs, all of one relative size.
        noise: of the same runs.
        log_bcrit: the fitted log critical batch; taken to lie within the batches, beyond which little changes.
    """
    weight, centred = _leverage(data.batch, data.sd, log_bcrit)
    variance = noise.at(data.batch)[0]
    ratio = variance / (noise.pooled if data.known else 1.0)
    share = weight * centred**2
    batches = np.unique(data.batch)
    parts = np.array([np.sum((share * ratio)[data.batch == batch]) for batch in batches])
    freedom = noise.at(batches)[1]
    factor = math.sqrt(float(np.sum(parts)) / float(np.sum(share)))
    kept = Data(log_samples=data.log_samples, batch=data.batch, censored=data.censored, sd=data.sd * factor, known=True)
    unit = factor**2 * (noise.pooled if data.known else 1.0)
    relative = dataclasses.replace(noise, variance=noise.variance / unit, pooled=noise.pooled / unit)
    return kept, float(np.sum(parts)) ** 2 / float(np.sum(parts**2 / freedom)), relative


def expected_misfit(noise: Noise, batch: Array, weight: Array, log_bcrit: float) -> tuple[float, float, float]:
    """The expected weighted sum of squares of batches' means around a right curve, and its degrees of freedom.

    Those of the sum itself, at most two less than the batches, and those behind its expectation (Brown & Forsythe 1974,
    "The small sample behavior of some statistics which test the equality of several means").

    Args:
        noise: of the runs, over the square of the standard deviations that they are weighted by.
        batch: of each mean, ``[b]``.
        weight: of each mean as the fit has it, ``[b]``: runs over the square of their standard deviation.
        log_bcrit: the fitted log critical batch.
    """
    _, centred = _leverage(batch, weight**-0.5, log_bcrit)
    spread = weight * centred**2
    variance, dof = noise.at(batch)
    parts = (1.0 - weight / np.sum(weight) - spread / np.sum(spread)) * variance
    total = float(np.sum(parts))
    return total, min(total**2 / float(np.sum(parts**2)), len(batch) - 2.0), total**2 / float(np.sum(parts**2 / dof))


def _leverage(batch: Array, sd: Array, log_bcrit: float) -> tuple[Array, Array]:
    """Weights, and the centred slopes of ln E by the log critical batch."""
    log_batch = np.log(batch)
    slopes = special.expit(log_batch - min(max(log_bcrit, float(np.min(log_batch))), float(np.max(log_batch))))
    weight = sd**-2.0
    return weight, slopes - np.average(slopes, weights=weight)
