"""Whether a fitted curve misses the batches by more than the scatter between seeds explains."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from orchestrator.theory.hyperbola import LEAST_VARIANCE, Data, Profile, hazard, log_growth
from orchestrator.theory.unequal_noise import Noise, expected_misfit


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Residuals of a fit, told apart into those of seeds and those of batches.

    Attributes:
        seed_sd_log: standard deviation of log samples between runs of a batch; None without two at any.
        rms_log_residual: root mean square distance of the batches' centres from the curve.
        p_value: probability of batches as far off if the curve is right; None where nothing tells.
        scale: root of the mean square of batches over that of seeds, as Birge's ratio; 1 where nothing tells.
        centres: one point a batch with equal weights, unknown noise; censored where no run of the batch arrived.
    """

    seed_sd_log: float | None
    rms_log_residual: float
    p_value: float | None
    scale: float
    centres: Data


def scatter_of(profile: Profile, dof: float | None, *, robust: bool, noise: Noise | None = None) -> Scatter:
    """The lack-of-fit test of the batches' means against the pure error within batches.

    F with (batches - 2, runs - batches) degrees of freedom over the batches without a censored run; against known
    standard deviations, with `dof` degrees of freedom behind them (None: exact). With the `noise` of each batch the
    expected squares are made of that (`unequal_noise.expected_misfit`). A mean over a batch with censored runs
    takes for each what it is expected to need. `centres` are those means, or medians if `robust`: among runs that hold
    gross outliers, lesser ones must be expected.

    Source: Draper & Smith 1998, "Applied Regression Analysis", section 2.1.

    >>> batch, seeds = np.repeat([1.0, 4.0, 16.0, 64.0], 2), np.tile([-0.01, 0.01], 4)
    >>> def p_value(log_samples):
    ...     data = Data(log_samples=log_samples + seeds, batch=batch, censored=batch < 0, sd=np.ones(8), known=False)
    ...     return scatter_of(Profile(data=data), None, robust=False).p_value
    >>> p_value(np.log(1.0 + batch / 8.0)) > 0.9, p_value(0.5 * np.log(batch)) < 0.01
    (True, True)
    """
    data, at = profile.data, profile.best
    log_bcrit, log_emin, sigma = float(at.log_bcrit[0]), float(at.log_emin[0]), math.sqrt(at.variance[0])
    curve = log_growth(log_bcrit, data.batch) + log_emin
    z = (data.log_samples - curve) / (data.sd * sigma)
    y = np.where(data.censored, curve + data.sd * sigma * hazard(z), data.log_samples)

    batches = np.unique(data.batch)
    centres, residuals = np.empty(len(batches)), np.empty(len(batches))
    lost = np.zeros(len(batches), dtype=np.bool_)
    between, groups, within, runs = 0.0, 0, 0.0, 0
    squares, spare, whole = 0.0, 0, []
    for i, batch in enumerate(batches):
        here = np.flatnonzero(data.batch == batch)
        weight = data.sd[here] ** -2.0
        arrived = here[~data.censored[here]]
        lost[i] = len(arrived) == 0
        values = data.log_samples[here] if lost[i] else y[here]
        mean = float(np.average(values, weights=weight))
        centres[i] = float(np.median(values)) if robust else mean
        residuals[i] = centres[i] - curve[here[0]]
        if len(arrived) > 1:
            squares += float(np.sum((y[arrived] - np.mean(y[arrived])) ** 2))
            spare += len(arrived) - 1
        if len(arrived) == len(here):
            between += float(np.sum(weight)) * (mean - curve[here[0]]) ** 2
            within += float(np.sum(weight * (y[here] - mean) ** 2))
            groups, runs = groups + 1, runs + len(here)
            whole.append((float(batch), float(np.sum(weight))))

    if noise is not None and groups > 2:
        at_batch, weights = np.array(whole).T
        expected, freedom, error_dof = expected_misfit(noise, at_batch, weights, log_bcrit)
        ratio = between / expected
        p_value: float | None = float(stats.f.sf(ratio, freedom, error_dof))
    else:
        p_value, ratio = _test(data.known, dof, between, groups, within, runs)
    return Scatter(
        seed_sd_log=math.sqrt(squares / spare) if spare else None,
        rms_log_residual=math.sqrt(float(np.mean(residuals[~lost] ** 2))),
        p_value=p_value,
        scale=math.sqrt(ratio),
        centres=Data(log_samples=centres, batch=batches, censored=lost, sd=np.ones(len(batches)), known=False),
    )


def _test(
    known: bool, dof: float | None, between: float, groups: int, within: float, runs: int
) -> tuple[float | None, float]:
    freedom = groups - 2
    error_dof: float = (math.inf if dof is None else dof) if known else runs - groups
    if freedom < 1 or error_dof < 1:
        return None, 1.0
    # Exact data leave rounding on both sides.
    error = 1.0 if known else max(within / error_dof, LEAST_VARIANCE)
    ratio = between / freedom / error
    p_value = stats.chi2.sf(between, freedom) if math.isinf(error_dof) else stats.f.sf(ratio, freedom, error_dof)
    return float(p_value), ratio
