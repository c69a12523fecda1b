"""Does a larger global batch still train as well? Arms of several worker counts compared over the same seeds.

Quality that is lost is the difference of the final metric to the arm of fewest workers, counted so that more is worse.
What is compared with what, and how it is told, is for others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from orchestrator.theory.critical_batch import Estimate

Mode = Literal["min", "max"]
Verdict = Literal["gained", "held", "lost", "diverged", "not told apart"]
MOST_SEEDS = 1000
"""Beyond, no number of seeds is advised: the difference lies at the tolerance."""
POWER = 0.8
"""Chance of a verdict with as many seeds as are advised."""
LARGEST = 1e100
"""Values beyond have diverged, though they may still be finite: their squares are not."""
RARELY = 0.001
"""Share of arms with the spread of the first one that are taken to scatter more."""
_POWER_QUANTILE = float(stats.norm.ppf(POWER))


@dataclass(frozen=True, kw_only=True)
class Arm:
    """The final metric of each seed's run, in the order of the seeds; a value that is not finite marks a divergence."""

    workers: int
    global_batch: int
    values: tuple[float, ...]

    @property
    def diverged(self) -> int:
        """How many of its runs did."""
        return sum(not abs(value) < LARGEST for value in self.values)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """An arm against that of fewest workers.

    Attributes:
        arm: what was trained.
        lost: quality lost on average, in units of the metric, with its interval; below 0 it is gained. Empty where
            a run of either arm diverged.
        beyond: the same over the tolerance. Where that is estimated, the interval holds its error too.
        verdict: ``gained`` (the interval of `lost` is below 0), ``held`` (that of `beyond` is), ``lost`` (`beyond` is
            above 0, or almost every seed of an arm that scatters is), ``diverged`` (a run of this arm did), or
            ``not told apart``.
        scatter: spread between seeds over that of the first arm, where it is clearly larger.
        seeds_needed: seeds in all under which a verdict is likely, if the means stay where they are; None where there
            is a verdict, or `MOST_SEEDS` would not do.
    """

    arm: Arm
    lost: Estimate
    beyond: Estimate
    verdict: Verdict
    scatter: float | None = None
    seeds_needed: int | None = None


@dataclass(frozen=True, kw_only=True)
class ScalingCheck:
    """The answer.

    Attributes:
        base: the arm of fewest workers.
        rows: every other arm, ascending.
        seeds: runs of each arm.
        tolerance: the least loss that matters; with an interval where it is the spread between seeds of `base`, empty
            where that cannot be told.
        confidence: of each interval.
    """

    base: Arm
    rows: tuple[Comparison, ...]
    seeds: int
    tolerance: Estimate
    confidence: float

    @property
    def holds_up_to(self) -> int | None:
        """The most workers at which quality is held, as it is at all fewer; None if it is not told of the first."""
        found = None
        for row in self.rows:
            if row.verdict not in ("held", "gained"):
                break
            found = row.arm.workers
        return found


def scaling_check(
    arms: Sequence[Arm], *, mode: Mode, tolerance: float | None = None, confidence: float = 0.95
) -> ScalingCheck:
    """Compare every arm with that of fewest workers, seed by seed, for non-inferiority.

    Over n seeds the differences d_i (more is worse) have the mean D and the standard deviation s; Student's interval of
    the expected loss is D -+ t(n - 1) s / sqrt(n). Quality is held where its upper end is below the tolerance T, and
    lost where its lower end is above: with the ends of a 95 % interval either is wrong at most 2.5 % of the time
    (ICH E9 1998, section 3.3.2; Piaggio et al. 2012, CONSORT for non-inferiority, JAMA 308:2594).

    Without a given T it is the standard deviation between seeds of the first arm, S, which is itself estimated. Mean
    and variance of normal values are independent, so that the interval of D - S is that of two independent estimates
    (MOVER; Zou & Donner 2008, Statistics in Medicine 27:1693): its ends are D - S less sqrt((D - D_low)^2 +
    (S_high - S)^2), and more sqrt((D_high - D)^2 + (S - S_low)^2), with chi-squared limits of S. m comparisons share
    the error (Bonferroni): each interval is one of 1 - (1 - confidence) / m.

    A mean says little of runs that blow up. Where an arm scatters clearly more than the first (F test of variances), it
    is lost as well if so many seeds are beyond T, or the upper limit of S, as chance would not put there were that the
    median (sign test; Conover 1999, Practical Nonparametric Statistics, section 3.4); that takes six seeds or more.

    Assumed: differences are normal and seeds independent. An arm of which a run diverged has a verdict and no number.

    Args:
        arms: two or more of different worker counts, with as many values each, at least two, under the same seeds.
        mode: ``min`` if less of the metric is better.
        tolerance: T, in units of the metric, above 0; None takes the spread between seeds.
        confidence: of all verdicts together, in (0, 1).

    Raises:
        ValueError: for arms that cannot be compared, a mode, a tolerance or a confidence that is not legal.

    >>> one = Arm(workers=1, global_batch=32, values=(0.50, 0.52, 0.48, 0.51, 0.49))
    >>> many = Arm(workers=8, global_batch=256, values=(0.61, 0.62, 0.59, 0.61, 0.60))
    >>> row, = scaling_check([one, many], mode="min", tolerance=0.02).rows
    >>> row.verdict, round(row.lost.value, 3), round(row.lost.low, 3), round(row.lost.high, 3)
    ('lost', 0.106, 0.099, 0.113)
    >>> scaling_check([one, many], mode="max", tolerance=0.02).rows[0].verdict
    'gained'
    """
    base, *others = _checked(arms, mode, tolerance, confidence)
    each = 1.0 - (1.0 - confidence) / len(others)
    margin = _spread(base, each) if tolerance is None else Estimate(value=tolerance, low=tolerance, high=tolerance)
    sign = 1.0 if mode == "min" else -1.0
    return ScalingCheck(
        base=base,
        rows=tuple(_compared(base, arm, sign, margin, each) for arm in others),
        seeds=len(base.values),
        tolerance=margin,
        confidence=each,
    )


def _checked(arms: Sequence[Arm], mode: str, tolerance: float | None, confidence: float) -> list[Arm]:
    ordered = sorted(arms, key=lambda arm: arm.workers)
    if len({arm.workers for arm in arms}) < max(2, len(arms)):
        raise ValueError(f"arms of {[arm.workers for arm in arms]} workers: at least two are needed, all different")
    counts = {len(arm.values) for arm in arms}
    if len(counts) > 1 or min(counts) < 2:
        raise ValueError(f"arms have {sorted(counts)} values: as many each are needed, and at least two")
    if mode not in ("min", "max"):
        raise ValueError(f"mode = {mode!r}: must be min or max")
    if tolerance is not None and not 0.0 < tolerance < math.inf:
        raise ValueError(f"tolerance = {tolerance!r}: must be a finite number above 0")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence = {confidence!r}: must be above 0 and below 1, such as 0.95")
    return ordered


def _spread(arm: Arm, confidence: float) -> Estimate:
    """The standard deviation between seeds; empty where it is not known, or nothing."""
    spread = float(np.std(arm.values, ddof=1)) if not arm.diverged else 0.0
    if spread == 0.0:
        return Estimate(value=None)
    factors = _factors(len(arm.values), len(arm.values), confidence)
    return Estimate(value=spread, low=float(spread * factors.low[0]), high=float(spread * factors.high[0]))


class _Factors(NamedTuple):
    """For each number of `seeds`: Student's quantile, and the limits of a standard deviation over its estimate."""

    seeds: NDArray[np.int64]
    student: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@functools.lru_cache
def _factors(fewest: int, most: int, confidence: float) -> _Factors:
    seeds = np.arange(fewest, most + 1)
    upper, lower = 0.5 + confidence / 2, 0.5 - confidence / 2
    low, high = (np.sqrt((seeds - 1) / stats.chi2.ppf(tail, seeds - 1)) for tail in (upper, lower))
    return _Factors(seeds=seeds, student=stats.t.ppf(upper, seeds - 1), low=low, high=high)


def _compared(base: Arm, arm: Arm, sign: float, margin: Estimate, confidence: float) -> Comparison:
    nothing = Estimate(value=None)
    if base.diverged or arm.diverged:
        verdict: Verdict = "diverged" if arm.diverged and not base.diverged else "not told apart"
        return Comparison(arm=arm, lost=nothing, beyond=nothing, verdict=verdict)
    differences = sign * (np.array(arm.values) - np.array(base.values))
    seeds, mean, sd = len(differences), float(np.mean(differences)), float(np.std(differences, ddof=1))
    reach = float(_factors(seeds, seeds, confidence).student[0]) * sd / math.sqrt(seeds)
    lost = Estimate(value=mean, low=mean - reach, high=mean + reach)
    scatter = _scatter(base, arm)
    if margin.value is None or margin.low is None or margin.high is None:
        verdict = "gained" if mean + reach < 0.0 else "not told apart"
        return Comparison(arm=arm, lost=lost, beyond=nothing, verdict=verdict, scatter=scatter)
    over = mean - margin.value
    beyond = Estimate(
        value=over,
        low=over - math.hypot(reach, margin.high - margin.value),
        high=over + math.hypot(reach, margin.value - margin.low),
    )
    verdict = _verdict(lost, beyond)
    if verdict == "not told apart" and scatter is not None and _mostly_above(differences, margin.high, confidence):
        verdict = "lost"
    estimated = margin.low < margin.value
    needed = _needed(over, sd, margin.value if estimated else 0.0, confidence) if verdict == "not told apart" else None
    return Comparison(arm=arm, lost=lost, beyond=beyond, verdict=verdict, scatter=scatter, seeds_needed=needed)


def _scatter(base: Arm, arm: Arm) -> float | None:
    first, this = (float(np.std(one.values, ddof=1)) for one in (base, arm))
    if first == 0.0 or this < _largest_ratio(len(arm.values)) * first:
        return None
    return this / first


@functools.lru_cache
def _largest_ratio(seeds: int) -> float:
    """Of two estimates of one standard deviation, in all but the share `RARELY` of cases."""
    return math.sqrt(stats.f.ppf(1.0 - RARELY, seeds - 1, seeds - 1))


def _mostly_above(differences: NDArray[np.float64], bound: float, confidence: float) -> bool:
    """Whether the median is above `bound`, by the sign test."""
    above = int(np.sum(differences > bound))
    return float(stats.binom.sf(above - 1, len(differences), 0.5)) <= 0.5 - confidence / 2


def _verdict(lost: Estimate, beyond: Estimate) -> Verdict:
    if lost.high is not None and lost.high < 0.0:
        return "gained"
    if beyond.high is not None and beyond.high < 0.0:
        return "held"
    return "lost" if beyond.low is not None and beyond.low > 0.0 else "not told apart"


def _needed(over: float, sd: float, spread: float, confidence: float) -> int | None:
    """The fewest seeds whose interval is likely to leave the tolerance out: its expected half-width, and `POWER`'s
    normal quantile of standard errors for the mean that will be found, are less than the distance."""
    factors = _factors(2, MOST_SEEDS, confidence)
    error = sd / np.sqrt(factors.seeds)
    side = spread * (1.0 - factors.low if over < 0.0 else factors.high - 1.0)
    width = np.hypot(factors.student * error, side) + _POWER_QUANTILE * error
    enough = factors.seeds[width < abs(over)]
    return int(enough[0]) if enough.size else None
