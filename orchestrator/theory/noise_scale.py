"""The simple gradient noise scale tr(Sigma) / |G|^2, in samples, from gradient norms at two batch sizes.

Norms are those of unclipped, unscaled mean gradients over all parameters: the small one before the data-parallel
average, the big one after it.
"""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from orchestrator.theory._checks import whole
from orchestrator.theory.fieller import Array, ratio_interval

MIN_WINDOWS = 10


@overload
def components(small_sq: float, big_sq: float, small_batch: float, big_batch: float) -> tuple[float, float]: ...
@overload
def components(
    small_sq: Array, big_sq: Array, small_batch: float | Array, big_batch: float | Array
) -> tuple[Array, Array]: ...
def components(small_sq: Any, big_sq: Any, small_batch: Any, big_batch: Any) -> tuple[Any, Any]:
    r"""Unbiased estimates of tr(Sigma) and :math:`|G|^2` from one pair of squared gradient norms.

    .. math::
        S = \frac{|g_s|^2 - |g_b|^2}{1/B_s - 1/B_b}, \qquad
        \mathcal{G}^2 = \frac{B_b |g_b|^2 - B_s |g_s|^2}{B_b - B_s}

    They follow from :math:`E|g_B|^2 = |G|^2 + \mathrm{tr}(\Sigma) / B`, which holds for mean gradients of samples drawn
    independently. Either estimate may be negative in a single window; average over windows before dividing.
    Source: McCandlish et al. 2018 (arXiv:1812.06162), appendix A.1.

    Args:
        small_sq: :math:`|g_s|^2`, squared 2-norm of the mean gradient over a small batch; the mean of several such
            squares where there are several. Scalars, or arrays of one shape; not finite passes through.
        big_sq: :math:`|g_b|^2`, the same of the big batch.
        small_batch: :math:`B_s`, samples, > 0; effective ones if weights are unequal.
        big_batch: :math:`B_b`, samples, > :math:`B_s`.

    Returns:
        ``(S, G2)``, in squared gradient units: S per sample, G2 of the true gradient.

    Raises:
        ValueError: unless 0 < `small_batch` < `big_batch`, or if a square is negative.

    >>> components(50.0, 15.0, 1, 8)
    (40.0, 10.0)
    """
    if not (np.all(np.greater(small_batch, 0)) and np.all(np.less(small_batch, big_batch))):
        _refuse_batches(small_batch, big_batch)
    if np.any(np.less(small_sq, 0)) or np.any(np.less(big_sq, 0)):
        _refuse_squares(small_sq, big_sq)
    return _components(small_sq, big_sq, small_batch, big_batch)


def _components(small_sq: Any, big_sq: Any, small_batch: Any, big_batch: Any) -> tuple[Any, Any]:
    trace = (small_sq - big_sq) / (1.0 / small_batch - 1.0 / big_batch)
    g2 = (big_batch * big_sq - small_batch * small_sq) / (big_batch - small_batch)
    return trace, g2


def _refuse_batches(small_batch: Any, big_batch: Any) -> None:
    raise ValueError(
        f"small_batch = {small_batch!r}, big_batch = {big_batch!r}: must hold 0 < small < big. "
        "One worker without accumulation has one batch size only: use 2 workers or 2 micro batches"
    )


def _refuse_squares(small_sq: Any, big_sq: Any) -> None:
    raise ValueError(f"small_sq = {small_sq!r}, big_sq = {big_sq!r}: a squared norm must not be negative")


@dataclass(frozen=True, kw_only=True)
class NoiseEstimate:
    """The noise scale over some windows (a window is one update's pair of norms), with its uncertainty.

    Attributes:
        value: tr(Sigma) / |G|^2 in samples, >= 0, or None where it is not determined.
        low: lower end of the interval at `confidence`, samples; None with `value`.
        high: upper end.
        trace: mean estimate of tr(Sigma), in squared gradient units; None without a finite window.
        trace_se: its standard error; None with too few windows.
        g2: mean estimate of |G|^2.
        g2_se: its standard error.
        correlation: of the errors of the two means.
        windows: finite windows that were used.
        dropped: windows left out because a norm was not finite.
        blocks: blocks behind the standard errors; 0 where there are none.
        confidence: of the interval.
        reason: empty, or ``not determined: ...``.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    trace: float | None = None
    trace_se: float | None = None
    g2: float | None = None
    g2_se: float | None = None
    correlation: float | None = None
    windows: int
    dropped: int
    blocks: int = 0
    confidence: float
    reason: str = ""
    unit: str = "samples"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict; every number in it is finite."""
        return dataclasses.asdict(self)


def estimate(
    trace: Array | Sequence[float], g2: Array | Sequence[float], *, confidence: float = 0.95, blocks: int = 20
) -> NoiseEstimate:
    r"""The noise scale as a ratio of means, with Fieller's interval.

    :math:`B = \bar S / \bar{\mathcal{G}^2}`: both parts are averaged over the windows first, since the ratio of a
    single window has no useful mean. The interval comes from the means of consecutive blocks of windows (see
    `theory.fieller`), so that autocorrelation along training is covered as long as it is short against a block. If the
    two parts drift, the estimate is their average, in which windows of large gradients weigh most.

    It is "not determined" with fewer than `MIN_WINDOWS` finite windows; where the mean :math:`|G|^2` is not clearly
    above 0 (the interval is unbounded); where tr(Sigma) is clearly below 0, which no gradient noise is and which
    betrays a sum taken for a mean, or a loss scale on one part only; and where norms are constant with no noise at
    all, as after clipping. A trace below 0 by chance gives 0, with its upper limit. A factor on both norms alike
    leaves the ratio as it is and cannot be seen.

    Args:
        trace: S of `components`, shape ``[n]``, in the order of the updates.
        g2: :math:`\mathcal{G}^2` of `components`, shape ``[n]``.
        confidence: of the interval, in (0, 1).
        blocks: most blocks to use, >= 5; a block holds at least two windows.

    Raises:
        ValueError: for shapes that differ or are not one-dimensional, or an argument out of range.

    >>> draws = np.random.default_rng(0).normal([40.0, 10.0], [30.0, 12.0], size=(1000, 2))
    >>> found = estimate(draws[:, 0], draws[:, 1])
    >>> found.low < 4.0 < found.high
    True
    >>> estimate(draws[:, 0], draws[:, 1] - 10.0).reason
    'not determined: |G|^2 is not clearly above 0 (-0.31 +- 0.82 at 95 %). Measure more windows'
    """
    traces, g2s = np.asarray(trace, dtype=np.float64), np.asarray(g2, dtype=np.float64)
    if traces.ndim != 1 or traces.shape != g2s.shape:
        raise ValueError(f"trace {traces.shape}, g2 {g2s.shape}: must be one-dimensional and of equal length")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence = {confidence!r}: must be above 0 and below 1, such as 0.95")
    whole("blocks", blocks, 5)

    finite = np.isfinite(traces) & np.isfinite(g2s)
    traces, g2s = traces[finite], g2s[finite]
    windows, dropped = len(traces), len(finite) - len(traces)
    if windows < MIN_WINDOWS:
        return NoiseEstimate(
            trace=float(np.mean(traces)) if windows else None,
            g2=float(np.mean(g2s)) if windows else None,
            windows=windows,
            dropped=dropped,
            confidence=confidence,
            reason=f"not determined: {windows} finite windows, {MIN_WINDOWS} are needed",
        )

    used = min(blocks, windows // 2)
    found = ratio_interval(traces, g2s, blocks=used, confidence=confidence)
    value = low = high = None
    if abs(found.x) < 1e-3 * found.y and float(np.ptp(g2s)) < 1e-4 * found.y:
        reason = "not determined: every window has the same norms, as after clipping. Measure before clipping"
    else:
        reason = not_determined(found.x, found.y, found.t * found.y_se, found.low, found.high, confidence)
    if not reason and found.low is not None:
        value, low, high = max(0.0, found.x / found.y), max(0.0, found.low), found.high
    return NoiseEstimate(
        value=value,
        low=low,
        high=high,
        trace=found.x,
        trace_se=found.x_se,
        g2=found.y,
        g2_se=found.y_se,
        correlation=found.correlation,
        windows=windows,
        dropped=dropped,
        blocks=used,
        confidence=confidence,
        reason=reason,
    )


def not_determined(
    trace: float, g2: float, half_width: float, low: float | None, high: float | None, confidence: float
) -> str:
    """Why the ratio of two means with Fieller's interval is none; empty where it is one.

    Args:
        trace: mean estimate of tr(Sigma).
        g2: that of |G|^2.
        half_width: of the interval of `g2`.
        low: of the interval of the ratio; None where it is not bounded.
        high: alike.
        confidence: of the intervals.
    """
    if low is None or high is None or g2 <= 0:
        spread = f"({g2:.2g} +- {half_width:.2g} at {100 * confidence:g} %)"
        return f"not determined: |G|^2 is not clearly above 0 {spread}. Measure more windows"
    if high < 0:
        return (
            f"not determined: tr(Sigma) is clearly below 0 ({trace:.2g}). "
            "Check that both norms are of mean gradients with the loss scale removed"
        )
    return ""


class NoiseMeter:
    """Collects one window an update; 16 bytes and about a microsecond each.

    >>> meter = NoiseMeter()
    >>> meter.append(50.0, 15.0, 1, 8)
    >>> len(meter), meter.estimate().reason
    (1, 'not determined: 1 finite windows, 10 are needed')
    """

    def __init__(self) -> None:
        self._trace = array("d")
        self._g2 = array("d")

    def __len__(self) -> int:
        return len(self._trace)

    def append(self, small_sq: float, big_sq: float, small_batch: float, big_batch: float) -> None:
        """Add a window; arguments and errors are those of `components`, scalars only."""
        if not 0 < small_batch < big_batch:
            _refuse_batches(small_batch, big_batch)
        if small_sq < 0 or big_sq < 0:
            _refuse_squares(small_sq, big_sq)
        trace, g2 = _components(small_sq, big_sq, small_batch, big_batch)
        self._trace.append(trace)
        self._g2.append(g2)

    def estimate(self, last: int | None = None, *, confidence: float = 0.95) -> NoiseEstimate:
        """`estimate` over the `last` windows (>= 1), or over all of them."""
        first = 0 if last is None else max(0, len(self) - whole("last", last))
        return estimate(np.array(self._trace[first:]), np.array(self._g2[first:]), confidence=confidence)

    def to_dict(self) -> dict[str, Any]:
        """All windows, JSON-ready (None where not finite); `from_dict` is its inverse."""
        return {
            name: [value if math.isfinite(value) else None for value in values]
            for name, values in (("trace", self._trace), ("g2", self._g2))
        }

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> NoiseMeter:
        """The meter that wrote `raw`; what was not finite comes back as NaN."""
        meter = cls()
        meter._trace.extend(math.nan if value is None else value for value in raw["trace"])
        meter._g2.extend(math.nan if value is None else value for value in raw["g2"])
        return meter
