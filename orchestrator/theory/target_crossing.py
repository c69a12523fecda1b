"""Samples to a target: where the expected evaluation curve crosses it, from all seeds, with a standard error.

The first crossing of one noisy curve comes too early, and the best of many trials by it is the luckiest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from orchestrator.theory.fieller import Array
from orchestrator.theory.local_parabola import LEAST_FACTOR, MIN_POINTS, WIDEST_FACTOR, Curve, Local, fit_around
from orchestrator.theory.observation import Observation

OVERSHOOT = 1.5
"""How far past the crossing, as a factor of its samples, every seed should train."""


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where the expected curve crosses, or why that is not determined.

    Attributes:
        verdict: ``crossed``, ``met at start``, ``not reached`` (by the end of the shortest curve), ``ended early`` (too
            close after the crossing to tell), ``too few points``, or ``diverged``.
        reason: empty, or ``not determined: ...``, with what to do.
        samples: of the crossing; 0 where the target is met at start; None where it is not determined.
        se_log: standard error of ln(samples).
        dof: degrees of freedom behind `se_log`; with one seed those of a rough guess.
        low: lower end of the interval at `confidence`, by Student's t, samples.
        high: upper end.
        seed_samples: a crossing a seed, with `samples` as their geometric mean: where the line of the mean slope
            through the seed's level at `samples` crosses. Unlike first crossings they are unbiased.
        slope: change of the value per unit of ln(samples) at the crossing.
        seeds: curves used.
        window: samples between which the local fit took evaluations.
        points: evaluations used.
        ended: samples at the end of the shortest curve.
        confidence: of the interval.
    """

    verdict: str
    reason: str = ""
    samples: float | None = None
    se_log: float | None = None
    dof: int | None = None
    low: float | None = None
    high: float | None = None
    seed_samples: tuple[float, ...] = ()
    slope: float | None = None
    seeds: int
    window: tuple[float, float] | None = None
    points: int = 0
    ended: float
    confidence: float

    def observations(self, global_batch: int) -> tuple[Observation, ...]:
        """What the critical batch is fitted to: a run a seed, or one censored run; none where this tells nothing."""
        if self.verdict == "not reached" and self.ended > 0:
            return (Observation(global_batch=global_batch, samples=self.ended, censored=True),)
        if self.verdict == "met at start":
            return (Observation(global_batch=global_batch, samples=0.0),)
        return tuple(Observation(global_batch=global_batch, samples=samples) for samples in self.seed_samples)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict; every number in it is finite."""
        return dataclasses.asdict(self)


def expected_crossing(
    curves: Sequence[Curve],
    target: float,
    mode: Literal["min", "max"],
    *,
    overshoot: float = OVERSHOOT,
    confidence: float = 0.95,
) -> Crossing:
    r"""Samples at which the mean of the curves over seeds crosses the target, by a local fit around the crossing.

    Each seed's values in a window of :math:`t^* / f` to :math:`t^* f` are fitted by least squares with a parabola in
    ln(samples), :math:`y_s(t) \\approx a_s + b_s \ln(t/t^*) + c_s \ln^2(t/t^*)`, weighted by the Epanechnikov kernel
    and by the spacing of the evaluations, so that neither cadence nor its irregularity matters. The window moves until
    the mean of the parabolas crosses at its centre, :math:`\bar a = y^*`. The fit is linear in the values, hence
    unbiased for the expected curve up to that curve's third derivative; a fit of log values would not be, nor is any
    statistic of single crossings.

    .. math:: \mathrm{se}(\ln t^*) = \mathrm{sd}_s(a_s) / (\sqrt{S}\, |\bar b|)

    from the spread between S >= 2 seeds, with S - 1 degrees of freedom. For one seed the spread is that of the parabola
    under autocorrelated noise (`correlated_noise`), which one curve tells but roughly.

    The window needs evaluations on both sides of the crossing from every seed: a seed that stops at its own first
    crossing leaves only the unlucky ones behind it, and biases the mean. So train every seed to `overshoot` times the
    crossing; the window shrinks down to `LEAST_FACTOR` where curves are shorter, and grows up to `WIDEST_FACTOR` where
    evaluations are sparse.

    Source: local polynomial regression as in Fan & Gijbels 1996, "Local Polynomial Modelling and Its Applications".

    Args:
        curves: one a seed, at the same batch and hyperparameters.
        target: value to reach.
        mode: ``min`` if less is better, ``max`` if more.
        overshoot: f, in [`LEAST_FACTOR`, `WIDEST_FACTOR`].
        confidence: of the interval, in (0, 1).

    Raises:
        ValueError: without curves, or for an argument out of range.

    >>> t = np.arange(0.0, 200.0, 4.0)
    >>> found = expected_crossing(
    ...     [Curve(samples=t, values=np.exp(-t / 50) + 0.01 * np.sin(seed + t)) for seed in range(5)], 0.2, "min")
    >>> found.verdict, abs(found.samples / (50 * math.log(5)) - 1) < 0.02
    ('crossed', True)
    """
    if not curves:
        raise ValueError("curves = []: at least one is needed")
    if mode not in ("min", "max"):
        raise ValueError(f"mode = {mode!r}: must be min or max")
    if not math.isfinite(target):
        raise ValueError(f"target = {target!r}: must be finite")
    if not LEAST_FACTOR <= overshoot <= WIDEST_FACTOR:
        raise ValueError(f"overshoot = {overshoot!r}: must be from {LEAST_FACTOR} to {WIDEST_FACTOR}")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence = {confidence!r}: must be above 0 and below 1, such as 0.95")
    ended = min(float(curve.samples[-1]) for curve in curves)
    blank = Crossing(verdict="", seeds=len(curves), ended=ended, confidence=confidence)
    diverged = sum(not np.all(np.isfinite(curve.values[curve.samples <= ended])) for curve in curves)
    if diverged:
        return _none(blank, "diverged", f"{diverged} of {len(curves)} seeds hold a value that is not finite")
    sign = 1.0 if mode == "min" else -1.0
    # From here on less is better, and the target is 0.
    gaps = [Curve(samples=curve.samples, values=sign * (curve.values - target)) for curve in curves]
    times, mean = _mean(gaps, ended)
    if mean[0] <= 0:
        if times[0] == 0:
            return dataclasses.replace(blank, verdict="met at start", samples=0.0)
        why = f"the target is met at the first evaluation, after {times[0]:g} samples. Evaluate earlier"
        return _none(blank, "met at start", why)
    below = np.flatnonzero(mean <= 0)
    if len(below) == 0:
        stopped = sum(gap.samples[-1] == ended and gap.values[-1] <= 0 for gap in gaps)
        if stopped and max(gap.samples[-1] for gap in gaps) > ended:
            why = f"{stopped} of {len(gaps)} seeds ended at the target, before the mean got there. Train all of them on"
            return _none(blank, "ended early", why)
        why = f"the mean of {len(curves)} seeds has not reached the target after {ended:g} samples. Train longer"
        return _none(blank, "not reached", why)
    at = int(below[0])
    share = mean[at - 1] / (mean[at - 1] - mean[at])
    start = times[at - 1] + share * (times[at] - times[at - 1])
    return _located(gaps, float(start), blank, sign, overshoot)


def _none(blank: Crossing, verdict: str, reason: str) -> Crossing:
    return dataclasses.replace(blank, verdict=verdict, reason=f"not determined: {reason}")


def _mean(gaps: Sequence[Curve], ended: float) -> tuple[Array, Array]:
    """The mean over seeds, interpolated, at every time of all of them that each has reached."""
    begun = max(float(gap.samples[0]) for gap in gaps)
    times = np.unique(np.concatenate([gap.samples for gap in gaps]))
    times = times[(times >= begun) & (times <= ended)]
    if len(times) == 0:
        times = np.array([ended])
    return times, np.mean([np.interp(times, gap.samples, gap.values) for gap in gaps], axis=0)


def _located(gaps: Sequence[Curve], start: float, blank: Crossing, sign: float, overshoot: float) -> Crossing:
    centre = start
    for attempt in range(200):
        local = fit_around(gaps, centre, math.log(overshoot), blank.ended)
        if local is None:
            break
        step = _step(np.mean(local.coefficients, axis=0), local.half_width)
        # A window that flips between two sets of evaluations comes to rest between them.
        centre *= math.exp(step if attempt < 20 else 0.5 * step)
        if abs(step) < (1e-9 if attempt < 100 else 1e-3):
            return _crossed(gaps, local, centre, blank, sign)
    if centre * LEAST_FACTOR > blank.ended:
        near = min(centre, blank.ended)
        why = (
            f"the curves end at {blank.ended:g} samples, too soon after a crossing near {near:.3g}. "
            f"Train to {overshoot * near:.3g}"
        )
        return _none(blank, "ended early", why)
    why = f"fewer than {MIN_POINTS} evaluations of a seed around {centre:.3g} samples. Evaluate more often"
    return _none(blank, "too few points", why)


def _step(mean: Array, half_width: float) -> float:
    """How far from the centre, in ln(samples), the mean parabola falls through 0; the likely side if it does not."""
    level, slope, bend = (float(c) for c in mean)
    roots = np.roots([bend, slope, level]) if bend != 0 else np.array([-level / slope] if slope != 0 else [])
    falling = [float(r.real) for r in roots if r.imag == 0 and slope + 2.0 * bend * r.real < 0]
    found = [x for x in falling if abs(x) <= half_width]
    if found:
        return min(found, key=abs)
    return 0.7 * math.copysign(half_width, level)


def _crossed(gaps: Sequence[Curve], local: Local, centre: float, blank: Crossing, sign: float) -> Crossing:
    seeds = len(gaps)
    slope = float(np.mean(local.coefficients[:, 1]))
    levels = (local.coefficients[:, 0] - np.mean(local.coefficients[:, 0])).tolist()
    if seeds > 1:
        spread, dof = float(np.std(local.coefficients[:, 0], ddof=1)) / math.sqrt(seeds), seeds - 1
    else:
        spread, dof = local.level_error(gaps[0])
    se_log = spread / abs(slope)
    reach = float(stats.t.ppf(0.5 + blank.confidence / 2, dof)) * se_log
    return dataclasses.replace(
        blank,
        verdict="crossed",
        samples=centre,
        se_log=se_log,
        dof=dof,
        low=centre * math.exp(-min(reach, 700.0)),
        high=centre * math.exp(min(reach, 600.0)),
        seed_samples=tuple(centre * math.exp(max(-600.0, min(-level / slope, 600.0))) for level in levels),
        slope=sign * slope,
        window=(centre * math.exp(-local.half_width), centre * math.exp(local.half_width)),
        points=sum(len(inside) for inside in local.inside),
    )
