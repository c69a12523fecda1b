"""Samples-to-target against the learning rate at one batch: what runs so far tell of the valley's floor.

A grid of valleys of many shapes, each weighted by how well it explains the runs; and which run would tell most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from orchestrator.theory.fieller import Array
from orchestrator.theory.ladder_rate import Guess

STEP = 0.05
SHARPNESS = (0.5, 1.0, 2.0, 4.0, 10.0, 30.0)
SLOPES = (0.6, 1.0, 1.5, 2.5, 4.0)
WORST, STEEP = 1.5, 4.0
REGRET_CAP = 1.0
RACED = 0.35
"""The race ends runs that are higher than about this, so that they are not told apart."""
LIKELY = ((1.5, 1.2), (1.0, 0.5))
"""What is supposed of sharpness and slope: median, and standard deviation of the logarithm."""
SHARED = 0.7
"""Correlation of ln(samples) between learning rates at the same seed; simulated on the noisy quadratic: 0.6 to 0.9."""
MODEL_SD = 0.03
FAR_SD = 0.2
"""No valley has exactly one of the shapes: a run x higher than the best is explained up to 0.2 x."""
BEYOND = -4.0
"""Log odds of a run that reached the target beyond the cliff, or of one that diverged before it."""
HYPOTHESES = 400
NODES, SHARES = np.array([-math.sqrt(3.0), 0.0, math.sqrt(3.0)]), np.array([1.0, 4.0, 1.0]) / 6.0
"""Gauss-Hermite: three outcomes that stand for a normal one."""
CANDIDATE_STEP = 0.08


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A learning rate that was tried.

    Attributes:
        log_lr: ln(lr).
        log_samples: of the expected curve's crossing, all seeds together; None where none was seen.
        seeds: runs behind it.
        sd: of ln(samples) of one seed here.
        at_least: without a crossing, what ln(samples) is at least; inf for a curve that came to rest above the target,
            or one that
        diverged: rather than stayed.
    """

    log_lr: float
    log_samples: float | None = None
    seeds: int = 1
    sd: float = 0.1
    at_least: float = -math.inf
    diverged: bool = False


@dataclass(frozen=True, kw_only=True)
class Valley:
    """Weighted hypotheses of where the valley's floor lies and what shape it has.

    Attributes:
        floor: ln(lr) of each hypothesis' floor, ``[h]``.
        sharpness: p, ``[h]``.
        slope: s, ``[h]``.
        level: ln(samples) at the floor, ``[h]``; nan where nothing crossed.
        weight: of each, sums to 1.
        allowed: ln of the learning rates that may be chosen; the floor may lie beyond them.
    """

    floor: Array
    sharpness: Array
    slope: Array
    level: Array
    weight: Array
    allowed: tuple[float, float] = (-math.inf, math.inf)

    @property
    def mean(self) -> float:
        """Mean of ln(lr) of the floor."""
        return float(self.weight @ self.floor)

    @property
    def sd(self) -> float:
        """Standard deviation of ln(lr) of the floor."""
        return math.sqrt(float(self.weight @ (self.floor - self.mean) ** 2))

    def height(self, log_lr: Array) -> Array:
        """ln(samples) above the floor at each learning rate, ``[h, n]``."""
        return valley(log_lr[None, :] - self.floor[:, None], self.sharpness[:, None], self.slope[:, None])

    def shapes(self) -> Array:
        """How likely each sharpness is (`SHARPNESS`) together with each slope (`SLOPES`), ``[p, s]``."""
        out = np.zeros((len(SHARPNESS), len(SLOPES)))
        np.add.at(out, (np.searchsorted(SHARPNESS, self.sharpness), np.searchsorted(SLOPES, self.slope)), self.weight)
        return out

    def best(self, below: float = math.inf) -> tuple[float, float]:
        """The ln(lr) of least expected excess in ln(samples), and that excess; `below` bounds it.

        A cliff above the floor costs more than a slope below it, so it lies below the likeliest floor.
        """
        grid = self._choices(below)
        excess = self.weight @ np.minimum(self.height(grid), REGRET_CAP)
        at = int(np.argmin(excess))
        return float(grid[at]), float(excess[at])

    def thinned(self) -> Valley:
        """Its likeliest hypotheses."""
        keep = np.argsort(-self.weight, kind="stable")[:HYPOTHESES]
        weight = self.weight[keep] / np.sum(self.weight[keep])
        return Valley(
            floor=self.floor[keep],
            sharpness=self.sharpness[keep],
            slope=self.slope[keep],
            level=self.level[keep],
            weight=weight,
            allowed=self.allowed,
        )

    def gains(self, log_lrs: Array, sds: Array) -> list[float]:
        """By how much one more run at each ln(lr), with noise `sds`, is expected to lessen the excess of `best`."""
        excess = np.minimum(self.height(self._choices()), REGRET_CAP)
        told = np.minimum(self.height(log_lrs), RACED) + np.nan_to_num(self.level)[:, None]
        return [self._gain(excess, told[:, i], float(sd)) for i, sd in enumerate(sds)]

    def _gain(self, excess: Array, told: Array, sd: float) -> float:
        before = float(np.min(self.weight @ excess))
        order = np.argsort(told, kind="stable")
        cumulated = np.cumsum(self.weight[order])
        middles = (np.arange(12) + 0.5) / 12
        centres = told[order][np.minimum(np.searchsorted(cumulated, middles), len(told) - 1)]
        outcomes = (centres[:, None] + sd * NODES).ravel()
        odds = np.tile(SHARES / 12, 12)
        logs = np.log(self.weight + 1e-300) - 0.5 * ((outcomes[:, None] - told) / sd) ** 2
        weight = np.exp(logs - np.max(logs, axis=1, keepdims=True))
        weight /= np.sum(weight, axis=1, keepdims=True)
        return before - float(odds @ np.min(weight @ excess, axis=1))

    def _choices(self, below: float = math.inf) -> Array:
        heavy = self.floor[self.weight > 1e-4 * np.max(self.weight)]
        least, most = self.allowed[0], min(self.allowed[1], below)
        low, high = max(float(np.min(heavy)) - 0.3, least), min(float(np.max(heavy)), most)
        grid: Array = np.arange(low, high + STEP / 2, STEP)
        # A range beyond all floors, or below none of them, leaves its end.
        return np.minimum(grid, most) if len(grid) else np.array([max(least, min(low, most))])


def valley(x: Array, sharpness: Array, slope: Array) -> Array:
    r"""ln(samples) above the floor at a distance x = ln(lr / best lr).

    .. math:: s \\left(-x - \ln\frac{1 - e^{p x} / (1 + p)}{1 - 1 / (1 + p)}\right)

    p = 1 and s = 1 is the gain of one step against its learning rate in McCandlish et al. 2018 (arXiv:1812.06162),
    equation 2.5; samples are proportional to 1 / lr far below the floor, and a cliff above it, at
    x = ln(1 + p) / p, comes nearer with p. Its curvature is s (1 + p). s is for whatever learns slower or faster than
    its learning rate. On the cliff's side it is cut at `WORST`, and beyond grows by `STEEP`, so that no two runs beyond
    look like a floor.

    >>> one = np.ones(1)
    >>> [round(float(valley(np.array([x]), one, one)[0]), 3) for x in (math.log(0.8), math.log(1.25), 1.0)]
    [0.041, 0.065, 2.727]
    """
    left = 1.0 - np.exp(np.minimum(sharpness * x, 50.0)) / (1.0 + sharpness)
    height = slope * (-x - np.log(np.maximum(left, 1e-9) * (1.0 + sharpness) / sharpness))
    over = x - cliff(sharpness)
    out: Array = np.where(over >= 0, WORST + STEEP * over, np.where(x > 0, np.minimum(height, WORST), height))
    return out


def cliff(sharpness: Array) -> Array:
    """ln(lr / best lr) from which the target is out of reach."""
    out: Array = np.log1p(sharpness) / sharpness
    return out


def locate(
    tried: Sequence[Tried],
    prior: Guess,
    bounds: tuple[float, float],
    shapes: Array | None = None,
    allowed: tuple[float, float] = (-math.inf, math.inf),
) -> Valley:
    """What the runs at one batch tell, together with what was expected of it.

    Crossings are compared under normal noise that is shared between learning rates of the same seeds, by generalised
    least squares with a free level; a run without a crossing by the probability that it needs more than it was seen to.

    Args:
        tried: any number of learning rates.
        prior: of the floor; its tails are heavy.
        bounds: ln of the least and the largest learning rate at which a floor is sought.
        shapes: how likely each shape is, as of `Valley.shapes` of another batch.
        allowed: ln of the least and the largest learning rate that may be chosen.
    """
    grid = np.arange(bounds[0], bounds[1] + STEP / 2, STEP)
    floor, sharp, slope = (a.ravel() for a in np.meshgrid(grid, SHARPNESS, SLOPES, indexing="ij"))
    log_weight = -2.5 * np.log1p(((floor - prior.log_lr) / prior.sd) ** 2 / 4.0)
    for values, (median, sd) in zip((sharp, slope), LIKELY, strict=True):
        log_weight -= 0.5 * (np.log(values / median) / sd) ** 2
    if shapes is not None:
        blurred = 0.5 * shapes
        blurred[1:] += 0.25 * shapes[:-1]
        blurred[:-1] += 0.25 * shapes[1:]
        mixed = 0.7 * blurred / np.sum(blurred) + 0.3 / blurred.size
        log_weight += np.tile(np.log(mixed).ravel(), len(grid))
    heights = (
        valley(np.array([one.log_lr for one in tried])[None, :] - floor[:, None], sharp[:, None], slope[:, None])
        if tried
        else np.zeros((len(floor), 0))
    )
    crossed = [i for i, one in enumerate(tried) if one.log_samples is not None]
    level = np.full(len(floor), math.nan)
    if crossed:
        squares, level = _fitted([tried[i] for i in crossed], heights[:, crossed])
        log_weight -= 0.5 * squares
    edge = floor + cliff(sharp)
    soonest = min((one.log_samples for one in tried if one.log_samples is not None), default=math.inf)
    for i, one in enumerate(tried):
        if one.log_samples is not None:
            log_weight += np.where(one.log_lr < edge, 0.0, BEYOND)
        elif one.diverged:
            log_weight += np.where(one.log_lr < edge, np.where(one.log_lr < floor, 1.5, 0.5) * BEYOND, 0.0)
        elif crossed:
            over = min(one.at_least, soonest + WORST) - level
            sd = math.sqrt(one.sd**2 + 0.05**2)
            log_weight += np.maximum(special.log_ndtr((heights[:, i] - over) / sd), -8.0)
    weight = np.exp(log_weight - np.max(log_weight))
    return Valley(
        floor=floor, sharpness=sharp, slope=slope, level=level, weight=weight / np.sum(weight), allowed=allowed
    )


def _fitted(tried: Sequence[Tried], heights: Array) -> tuple[Array, Array]:
    """Squared distance and level of each hypothesis."""
    y = np.array([one.log_samples for one in tried], dtype=np.float64)
    sd = np.array([one.sd for one in tried])
    seeds = np.array([one.seeds for one in tried], dtype=np.float64)
    covariance = SHARED * np.outer(sd, sd) / np.maximum(seeds[:, None], seeds)
    own = sd**2 / seeds + MODEL_SD**2 + (FAR_SD * (y - np.min(y))) ** 2
    covariance[np.diag_indices(len(y))] = own
    root = np.linalg.cholesky(covariance)
    one = np.linalg.solve(root, np.ones(len(y)))
    residual = np.linalg.solve(root, (y - heights).T)
    level = (one @ residual) / (one @ one)
    return np.sum(residual**2, axis=0) - level**2 * (one @ one), level
