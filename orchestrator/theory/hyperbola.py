"""The likelihood of a critical batch: log samples-to-target on a hyperbola in the batch, normal noise, censored runs.

Numbers in, numbers out: which data may enter and what an answer means is decided in `critical_batch`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy import optimize, special

from orchestrator.theory.fieller import Array

FAR = 40.0
"""Distance in log batch beyond the data at which the curve is flat, or a straight line, to the last digit."""
NEAR, STEP = 10.0, 0.05
LEAST_VARIANCE = 1e-22
"""Of log samples: what remains of exact data in float64."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Runs in log space.

    Attributes:
        log_samples: natural logarithm of the samples to the target, or of the budget of a censored run; ``[n]``.
        batch: samples, > 0; ``[n]``.
        censored: whether the run ended before the target; ``[n]``.
        sd: standard deviations of `log_samples`, relative ones unless `known`; > 0, ``[n]``.
        known: whether `sd` holds as it is; else a common factor is estimated.
    """

    log_samples: Array
    batch: Array
    censored: np.ndarray[tuple[int], np.dtype[np.bool_]]
    sd: Array
    known: bool


@dataclass(frozen=True)
class Fitted:
    """The best log Emin and the common factor at given log critical batches; all of one shape ``[m]``.

    `information` is the curvature of the profile in log Emin times the squared factor.
    """

    log_bcrit: Array
    log_emin: Array
    variance: Array
    log_likelihood: Array
    information: Array


@dataclass(frozen=True, kw_only=True)
class Region:
    """Every (log Emin, log critical batch) that the data do not exclude: `log_emin` +- `half` at each `log_bcrit`.

    `best` are the two at the maximum, the critical batch at a finite stand-in.
    """

    best: tuple[float, float]
    log_bcrit: Array
    log_emin: Array
    half: Array

    def range_of(self, shape: Callable[[Array], Array]) -> tuple[float, float, float]:
        """Value at the best, least and largest value of log Emin + shape(log critical batch), shape of ``[m]``."""
        log_emin, log_bcrit = self.best
        centre = self.log_emin + shape(self.log_bcrit)
        value = log_emin + float(shape(np.array([log_bcrit]))[0])
        return value, float(np.min(centre - self.half)), float(np.max(centre + self.half))


@dataclass(kw_only=True)
class Profile:
    r"""Profile likelihood of the log critical batch c, with log Emin and the noise at their best for each c.

    .. math::
        \ln E_i \sim N(\ln E_{min} + \ln(1 + B_i / e^c),\ \sigma^2 s_i^2)

    A censored run adds the probability of ending above its budget (Tobit). For each c the likelihood is concave in
    (1/sigma, log Emin / sigma) (Olsen 1978, "Note on the uniqueness of the maximum likelihood estimator for the Tobit
    model"), so that Newton's method finds the one maximum. With sigma unknown the deviance of uncensored runs is
    n ln(RSS(c) / RSS), hence RSS(c) <= RSS (1 + F / (n - 2)) is the region of Bates & Watts 1988, "Nonlinear
    Regression Analysis and Its Applications", section 6.1; ends as in Venzon & Moolgavkar 1988, "A method for computing
    profile-likelihood-based confidence intervals".
    """

    data: Data
    log_bcrit: float = field(init=False)
    """At the maximum; -inf where the samples are best proportional to the batch, inf where they are best constant."""
    best: Fitted = field(init=False)
    """At `log_bcrit`, or at its finite stand-in; shapes ``[1]``."""

    def __post_init__(self) -> None:
        first, last = math.log(np.min(self.data.batch)), math.log(np.max(self.data.batch))
        inner = np.arange(first - NEAR, last + NEAR, STEP)
        grid = np.concatenate([[first - FAR], inner, [last + FAR]])
        found = fit_at(self.data, grid)
        top = int(np.argmax(found.log_likelihood))
        self.log_bcrit = self._refined(found, top)
        finite = float(np.clip(self.log_bcrit, grid[0], grid[-1]))
        self.best = fit_at(self.data, np.array([finite]))
        self._grid = np.sort(np.append(grid, finite))
        self._deviance = self.deviance(self._grid)

    def _refined(self, found: Fitted, top: int) -> float:
        # The ends are reached asymptotically: a point near them that is no better than the limit is the limit.
        gain = found.log_likelihood[top] - found.log_likelihood[[0, -1]]
        for end, limit in ((0, -math.inf), (-1, math.inf)):
            if gain[end] <= 1e-9:
                return limit
        below, above = (float(found.log_bcrit[i]) for i in (top - 1, top + 1))
        score = (slope(self.data, below), slope(self.data, above))
        if not score[0] > 0 > score[1]:
            return float(found.log_bcrit[top])
        return float(optimize.brentq(lambda c: slope(self.data, c), below, above, xtol=1e-13, rtol=1e-14))

    def deviance(self, log_bcrit: Array) -> Array:
        """Twice the loss of log likelihood against the best, >= 0 but for rounding."""
        found: Array = 2.0 * (self.best.log_likelihood - fit_at(self.data, log_bcrit).log_likelihood)
        return found

    def interval(self, limit: float) -> tuple[float | None, float | None]:
        """Ends of the log critical batches whose deviance is at most `limit`; None where there is no end."""
        inside = np.flatnonzero(self._deviance <= max(limit, 1e-12))
        first, last = int(inside[0]), int(inside[-1])
        low = None if first == 0 else self._end(first - 1, first, limit)
        high = None if last == len(self._grid) - 1 else self._end(last, last + 1, limit)
        return low, high

    def _end(self, left: int, right: int, limit: float) -> float:
        def excess(c: float) -> float:
            return float(self.deviance(np.array([c]))[0]) - limit

        a, b = float(self._grid[left]), float(self._grid[right])
        # Equal signs only by rounding, where the end lies on the grid point inside.
        if excess(a) * excess(b) >= 0:
            return a if self._deviance[left] <= self._deviance[right] else b
        return float(optimize.brentq(excess, a, b, xtol=1e-10))

    def region(self, limit: float) -> Region:
        """What `limit` on the deviance leaves of both parameters, for the intervals of functions of them."""
        low, high = self.interval(limit)
        a, b = (end if end is not None else self._grid[i] for end, i in ((low, 0), (high, -1)))
        within = self._grid[(self._grid > a) & (self._grid < b)]
        c = np.unique(np.concatenate([[a, b], within, np.linspace(a, b, 100)]))
        found = fit_at(self.data, c)
        rest = np.maximum(0.0, limit - 2.0 * (self.best.log_likelihood - found.log_likelihood))
        n = int(np.sum(~self.data.censored))
        spread = rest if self.data.known else n * found.variance * np.expm1(rest / n)
        best = float(self.best.log_emin[0]), float(self.best.log_bcrit[0])
        return Region(best=best, log_bcrit=c, log_emin=found.log_emin, half=np.sqrt(spread / found.information))


def fit_at(data: Data, log_bcrit: Array) -> Fitted:
    """Log Emin and the noise factor that are likeliest at each of `log_bcrit`, shape ``[m]``."""
    rest = data.log_samples - log_growth(log_bcrit[:, None], data.batch)
    if np.any(data.censored):
        return _tobit(data, log_bcrit, rest)
    weight = data.sd**-2.0
    total = float(np.sum(weight))
    log_emin = rest @ weight / total
    rss = (rest - log_emin[:, None]) ** 2 @ weight
    n = len(data.batch)
    variance = np.ones_like(rss) if data.known else np.maximum(rss / n, LEAST_VARIANCE)
    loss = 0.5 * rss if data.known else 0.5 * n * np.log(variance)
    return Fitted(log_bcrit, log_emin, variance, -loss, np.full_like(rss, total))


def log_growth(log_bcrit: Array | float, batch: Array | float) -> Array:
    """ln(E(B) / Emin) = ln(1 + B / Bcrit); shapes are broadcast.

    >>> round(float(np.exp(log_growth(math.log(64.0), 128.0))), 12)
    3.0
    """
    found: Array = np.logaddexp(0.0, np.log(batch) - log_bcrit)
    return found


def slope(data: Data, log_bcrit: float) -> float:
    """Derivative of the profile log likelihood by the log critical batch, up to a positive factor."""
    at = fit_at(data, np.array([log_bcrit]))
    growth = log_growth(log_bcrit, data.batch)
    sigma = math.sqrt(at.variance[0])
    z = (data.log_samples - growth - at.log_emin[0]) / (data.sd * sigma)
    pull = np.where(data.censored, hazard(z), z)
    return float(np.sum(pull / data.sd * -special.expit(np.log(data.batch) - log_bcrit)))


def hazard(z: Array) -> Array:
    """Mean of a standard normal that is above z; any shape."""
    found: Array = np.exp(-0.5 * z**2 - 0.5 * math.log(2.0 * math.pi) - special.log_ndtr(-z))
    return found


def _tobit(data: Data, log_bcrit: Array, rest: Array) -> Fitted:
    u = 1.0 / data.sd
    reached = ~data.censored
    n = int(np.sum(reached))
    # Olsen's parameters: g = 1 / sigma, d = log Emin / sigma. Centred, so that d stays small against g.
    centre = np.mean(rest, axis=1, keepdims=True)
    y = (rest - centre) * u

    def log_likelihood(g: Array, d: Array) -> Array:
        z = g[:, None] * y - d[:, None] * u
        terms = np.where(data.censored, special.log_ndtr(-z), -0.5 * z**2)
        found: Array = np.sum(terms, axis=1) + (0.0 if data.known else n * np.log(g))
        return found

    spread = np.sqrt(np.maximum(np.mean(y**2, axis=1), LEAST_VARIANCE))
    g = np.ones(len(y)) if data.known else 1.0 / spread
    d = np.zeros(len(y))
    value = log_likelihood(g, d)
    for _ in range(100):
        z = g[:, None] * y - d[:, None] * u
        above = hazard(z)
        pull = np.where(data.censored, above, z)
        h = np.where(data.censored, above * (above - z), 1.0)
        slope_d, slope_g = pull @ u, -np.sum(pull * y, axis=1) + n / g
        h_dd, h_gd, h_gg = h @ u**2, -np.sum(h * y * u, axis=1), np.sum(h * y**2, axis=1) + n / g**2
        if data.known:
            step_g, step_d = np.zeros_like(g), slope_d / h_dd
        else:
            determinant = np.maximum(h_dd * h_gg - h_gd**2, 1e-300)
            step_g = (h_dd * slope_g - h_gd * slope_d) / determinant
            step_d = (h_gg * slope_d - h_gd * slope_g) / determinant
        share = np.where(step_g < 0, np.minimum(1.0, -0.9 * g / np.minimum(step_g, -1e-300)), 1.0)
        for _ in range(40):
            tried = log_likelihood(g + share * step_g, d + share * step_d)
            worse = tried < value - 1e-12 * (1.0 + np.abs(value))
            if not np.any(worse):
                break
            share = np.where(worse, 0.5 * share, share)
        g, d = g + share * step_g, d + share * step_d
        done = np.max(np.abs(tried - value)) < 1e-12
        value = tried
        if done:
            break
    a = d / g
    # Curvature by (log Emin, g) from that by (d, g), with g profiled out.
    l_aa, l_ag, l_gg = g**2 * h_dd, g * (h_gd + a * h_dd), h_gg + 2.0 * a * h_gd + a**2 * h_dd
    information = l_aa if data.known else l_aa - l_ag**2 / l_gg
    return Fitted(log_bcrit, a + centre[:, 0], g**-2.0, value, information / g**2)
