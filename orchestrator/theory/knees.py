"""The two batches at which a throughput curve bends: where doubling stops paying, and where its ceiling is near."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from orchestrator.theory.critical_batch import Estimate
from orchestrator.theory.fieller import Array
from orchestrator.theory.hyperbola import Data, Profile
from orchestrator.theory.throughput import Timing

LEAST_GAIN = 0.3
"""Gain of throughput under which doubling the batch does not pay."""
NEAR = 0.1
"""Share of the ceiling that a batch may fall short of it and still count as near."""
FALL = 0.05
"""Share of the peak by which a curve must sink behind it to be told from noise."""
MIN_BATCHES = 3


@dataclass(frozen=True, kw_only=True)
class Knee:
    """A micro batch at which the curve bends.

    Attributes:
        value: in samples; None where the timings only bound it.
        low: lower end of its interval; None where there is none.
        high: upper end, alike. Of the ceiling's knee where the curve falls: the largest batch that is still near it.
        reason: what weakens it, or why it has no value; empty otherwise.
    """

    value: float | None
    low: float | None
    high: float | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Knees:
    """What a throughput curve tells.

    Attributes:
        doubling: from which micro batch on doubling it gains under `LEAST_GAIN`.
        ceiling: the smallest micro batch within `NEAR` of the ceiling.
        half_speed: the micro batch of half the ceiling, samples.
        most_per_s: the ceiling, samples a second: fitted, or the peak where the curve falls behind it.
        peak: the fastest micro batch that was timed.
        falls_after: the same where the curve falls behind it, or None.
        gains: throughput gained by going on to the next batch timed, as a share, by batch; the last is not in it.
    """

    doubling: Knee
    ceiling: Knee
    half_speed: Estimate
    most_per_s: Estimate
    peak: int
    falls_after: int | None
    gains: dict[int, float]


def find_knees(timings: Sequence[Timing], *, confidence: float = 0.95) -> Knees:
    r"""Fit a throughput curve and find its knees.

    .. math::
        T(m) = \frac{m + h}{r}, \qquad \frac{m}{T} = r\,\frac{m}{m + h}

    so doubling m gains :math:`h / (2m + h)`, under g from :math:`m = h (1/g - 1) / 2` on, and m is within a share n of
    the ceiling r from :math:`m = h (1 - n) / n` on. h has the profile interval of `hyperbola.Profile`, for T is a
    hyperbola in m just as samples-to-target is in the batch. Where the curve falls behind its peak (caches, paging), it
    is fitted up to there, and the ceiling is the peak.

    Source: Hockney & Jesshope 1981, "Parallel Computers", for r (:math:`r_\infty`) and h (:math:`n_{1/2}`).

    Args:
        timings: of updates of one micro batch each, equal in all but the micro batch; at least `MIN_BATCHES` of those.
        confidence: of the intervals, in (0, 1).

    Raises:
        ValueError: for fewer micro batches, accumulation, or geometries that differ otherwise.

    >>> from orchestrator.theory.geometry import Geometry
    >>> timed = [Timing(geometry=Geometry(micro_batch=b), step_s=0.096 + 0.001 * b) for b in (8, 32, 128, 512, 2048)]
    >>> found = find_knees(timed)
    >>> round(found.doubling.value, 6), round(found.ceiling.value, 6), round(found.most_per_s.value, 6)
    (112.0, 864.0, 1000.0)
    """
    batch, log_s, workers = _curve(timings)
    speed = batch * np.exp(-log_s)
    top = int(np.argmax(speed))
    falls = bool(np.min(speed[top:]) < (1.0 - FALL) * speed[top])
    kept = batch <= batch[top] if falls and top >= MIN_BATCHES - 1 else np.ones(len(batch), dtype=np.bool_)
    data = Data(
        log_samples=log_s[kept],
        batch=batch[kept],
        censored=np.zeros(int(np.sum(kept)), dtype=np.bool_),
        sd=np.ones(int(np.sum(kept))),
        known=False,
    )
    profile = Profile(data=data)
    limit = _limit(len(data.batch), confidence)
    half = _bounds(profile, limit)
    # r = e^log(h) / e^log(T(0)); at h far below every batch it stays finite.
    value, low, high = profile.region(limit).range_of(lambda log_h: -log_h)
    most = Estimate(value=workers * math.exp(-value), low=workers * math.exp(-high), high=workers * math.exp(-low))
    if half.high is None:
        most = Estimate(low=most.low)
    share = 1.0 - NEAR
    if falls:
        share *= float(workers * speed[top] / most.value) if most.value else 1.0
        spread = math.sqrt(profile.best.variance[0] * float(stats.f.ppf(confidence, 1, len(data.batch) - 2)))
        best = workers * float(speed[top])
        most = Estimate(value=best, low=best * math.exp(-spread), high=best * math.exp(spread))
    doubling = _knee(half, 0.5 * (1.0 / LEAST_GAIN - 1.0), batch)
    ceiling = _knee(half, share / (1.0 - share), batch)
    if falls:
        ceiling = _falling(ceiling, batch, speed, top)
    return Knees(
        doubling=doubling,
        ceiling=ceiling,
        half_speed=half,
        most_per_s=most,
        peak=int(batch[top]),
        falls_after=int(batch[top]) if falls else None,
        gains={int(b): float(g) for b, g in zip(batch[:-1], speed[1:] / speed[:-1] - 1.0, strict=True)},
    )


def _curve(timings: Sequence[Timing]) -> tuple[Array, Array, int]:
    """Micro batches in order, the mean log seconds of each, and the workers."""
    shapes = {(t.geometry.accumulation, t.geometry.world_size, t.geometry.nodes) for t in timings}
    if len(shapes) != 1 or next(iter(shapes))[0] != 1:
        raise ValueError("the timings of a curve must be of accumulation 1, and equal in workers and nodes")
    batches = sorted({t.geometry.micro_batch for t in timings})
    if len(batches) < MIN_BATCHES:
        raise ValueError(f"micro batches timed: {len(batches)}; a curve needs at least {MIN_BATCHES}")
    log_s = [np.mean([math.log(t.step_s) for t in timings if t.geometry.micro_batch == b]) for b in batches]
    return np.array(batches, dtype=np.float64), np.array(log_s), next(iter(shapes))[1]


def _limit(n: int, confidence: float) -> float:
    return n * math.log1p(float(stats.f.ppf(confidence, 1, n - 2)) / (n - 2))


def _bounds(profile: Profile, limit: float) -> Estimate:
    low, high = profile.interval(limit)
    value = profile.log_bcrit if math.isfinite(profile.log_bcrit) else None
    return Estimate(**{k: None if v is None else math.exp(v) for k, v in zip(_ENDS, (value, low, high), strict=True)})


_ENDS = ("value", "low", "high")


def _knee(half: Estimate, factor: float, batch: Array) -> Knee:
    """The knee at `factor` half-speed batches, held against the batches that were timed."""
    least, most = float(batch[0]), float(batch[-1])
    value, low, high = (None if end is None else factor * end for end in (half.value, half.low, half.high))
    if low is None and high is None:
        reason = "not determined: the timings are too noisy. Time more updates, or batches further apart"
        return Knee(value=None, low=None, high=None, reason=reason)
    if (value is None and high is None) or (low is not None and low > most):
        reason = f"above {most:.0f}, the largest batch timed. Time larger ones"
        return Knee(value=None, low=max(low or 0.0, most), high=None, reason=reason)
    if value is None or value < least:
        reason = f"at or below {least:.0f}, the least batch timed"
        return Knee(value=None, low=None, high=max(high or 0.0, least), reason=reason)
    beyond = f"extrapolated beyond {most:.0f}, the largest batch timed" if value > most else ""
    return Knee(value=value, low=low, high=high, reason=beyond)


def _falling(knee: Knee, batch: Array, speed: Array, top: int) -> Knee:
    """The ceiling's knee with its upper end where the curve, straight between timings, leaves the ceiling again."""
    floor = (1.0 - NEAR) * speed[top]
    outside = np.flatnonzero(speed[top:] < floor)
    end = float(batch[-1])
    if len(outside):
        i = top + int(outside[0])
        x = np.log(batch[i - 1 : i + 1])
        end = math.exp(float(np.interp(-floor, -speed[i - 1 : i + 1], x)))
    reason = f"the curve falls after {batch[top]:.0f}: near the ceiling up to {end:.0f}"
    value = None if knee.value is None else min(knee.value, float(batch[top]))
    low = knee.low if knee.low is None else min(knee.low, float(batch[top]))
    return Knee(value=value, low=low, high=end, reason=reason)
