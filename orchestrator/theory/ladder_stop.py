"""When a run of a study stops: far enough past the target, or without hope to win. The executor asks at evaluations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.theory.fieller import Array
from orchestrator.theory.ladder import Mode, check_overshoot
from orchestrator.theory.local_parabola import Curve, fit_around

LEAST_MARGIN = 0.15
"""A run within this of the best, in ln(samples), is measured to its end: it tells the shape of the valley."""
TREND_POINTS = 8
TREND_SHARE = 0.4
"""The trend is that of this last share of the samples."""
TREND_FROM = 0.5
"""A trend is believed after this share of what the best needed."""
TREND_MARGIN = 0.25
FLAT = 0.1


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Where a curve is heading.

    Attributes:
        crossing: samples at which the tangent at the curve's end meets the target; inf where it never does. A curve
            that flattens, as they do at a constant learning rate, crosses later.
        soonest: the same for a tangent two standard errors steeper.
        relative_slope: that steeper slope over the mean slope since the start; near 1 for a curve that just began.
    """

    crossing: float
    soonest: float
    relative_slope: float

    @property
    def flat(self) -> bool:
        """Whether the curve came down and has come to rest: a lower learning rate is needed, not more samples."""
        return self.relative_slope < FLAT


def beyond(curve: Curve, target: float, mode: Mode, overshoot: float, least_samples: float = 0.0) -> bool:
    """Whether a run is `overshoot` times past its crossing, and past `least_samples`; it then has told what it can.

    That is so when the smoothed curve, a local parabola as of `target_crossing.expected_crossing`, is at the target at
    the end's samples / `overshoot`: one lucky evaluation ends nothing. A target met at sample 0 ends at once.

    Raises:
        ValueError: for an overshoot from which no crossing could be fitted.
    """
    check_overshoot(overshoot)
    gap = _gap(curve, target, mode)
    if gap[0] <= 0 and curve.samples[0] == 0:
        return True
    if curve.samples[-1] < least_samples or not np.all(np.isfinite(gap)):
        return False
    # Most evaluations lie before the target; they need no fit.
    if np.min(gap) > 0:
        return False
    end = float(curve.samples[-1])
    local = fit_around([Curve(samples=curve.samples, values=gap)], end / overshoot, math.log(overshoot), end)
    return local is not None and float(local.coefficients[0, 0]) <= 0


def hopeless(
    curve: Curve, target: float, mode: Mode, best_samples: float, best_se_log: float, max_samples: float
) -> bool:
    """Whether a search run can no longer win, or no longer reach the target within `max_samples`.

    It cannot win where it has not come to the target by two standard errors (at least `LEAST_MARGIN`) past the best,
    nor where half of that has passed and its tangent, two standard errors steeper than it is, leads there later.
    The second rule assumes that curves flatten; it leaves a margin of `TREND_MARGIN` for those that do not.

    Args:
        curve: so far.
        target: value to reach.
        mode: ``min`` if less is better, ``max`` if more.
        best_samples: the least samples to the target so far at this batch; inf if there is none.
        best_se_log: standard error of their logarithm, for one seed.
        max_samples: the run's budget.
    """
    gap = _gap(curve, target, mode)
    if not np.all(np.isfinite(gap)):
        return True
    now = float(curve.samples[-1])
    limit = best_samples * math.exp(max(2.0 * best_se_log, LEAST_MARGIN))
    last = gap[-min(3, len(gap)) :]
    if np.any(last <= 0) or (np.min(gap) <= 0 and now < 1.25 * limit):
        return False
    if now >= limit:
        return True
    most = min(limit, float(max_samples))
    found = trend(curve, target, mode) if now >= TREND_FROM * most else None
    return found is not None and found.soonest > most * math.exp(TREND_MARGIN)


def trend(curve: Curve, target: float, mode: Mode) -> Trend | None:
    """Where a curve that has not reached the target is heading; None where it is too short to tell.

    >>> t = np.arange(0.0, 101.0)
    >>> round(trend(Curve(samples=t, values=2.0 - t / 100), 0.5, "min").crossing, 6)
    150.0
    """
    gap = _gap(curve, target, mode)
    now = float(curve.samples[-1])
    late = curve.samples >= (1.0 - TREND_SHARE) * now
    if np.sum(late) < TREND_POINTS or not np.all(np.isfinite(gap)):
        return None
    x, y = curve.samples[late] - now, gap[late]
    design = np.stack([np.ones_like(x), x], axis=1)
    (level, slope), *_ = np.linalg.lstsq(design, y, rcond=None)
    residual = y - design @ np.array([level, slope])
    squares = float(np.sum(residual**2))
    # Residuals hang together; a short piece tells by how much only roughly, and too little.
    hang = float(np.sum(residual[1:] * residual[:-1])) / squares if squares > 0 else 0.0
    hang = min(max(hang + 2.0 / len(x), 0.5), 0.9)
    se = math.sqrt((1 + hang) / (1 - hang) * squares / (len(x) - 2) / float(np.sum((x - np.mean(x)) ** 2)))
    fallen = float(gap[0] - level)
    mean = fallen / now if now > 0 else 0.0
    return Trend(
        crossing=_meet(now, float(level), float(slope)),
        soonest=_meet(now, float(level), float(slope) - 2.0 * se),
        relative_slope=(2.0 * se - float(slope)) / mean if mean > 0 else math.inf,
    )


def _meet(now: float, level: float, slope: float) -> float:
    if level <= 0:
        return now
    return now - level / slope if slope < 0 else math.inf


def _gap(curve: Curve, target: float, mode: Mode) -> Array:
    """How far each value is from the target; less is better."""
    gap: Array = (1.0 if mode == "min" else -1.0) * (curve.values - target)
    return gap
