"""Memory by micro batch as a line over what is held anyway, and the largest micro batch that a device then takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.theory._checks import positive, whole

MARGIN = 0.15
"""Share of a device left free by default: for the allocator's gaps and for what other libraries hold."""
FITS = 1e-3
"""Relative distance of peaks from the line up to which they lie on it."""
FLAT = 0.01
"""Relative growth of the peak with accumulation from which it is a finding."""


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """Peak bytes by micro batch m: ``max(least, fixed + per_sample * m)``.

    Attributes:
        fixed_bytes: what is held whatever the micro batch.
        per_sample_bytes: what one more sample of a micro batch adds.
        least_bytes: the peak of the smallest micro batches, that of the optimizer's step rather than of a pass.
        worst_error: the largest relative distance of a point from the model.
    """

    fixed_bytes: float
    per_sample_bytes: float
    least_bytes: float = 0.0
    worst_error: float = 0.0

    def peak(self, micro_batch: float) -> float:
        """Peak bytes of an update in micro batches of so many samples."""
        return max(self.least_bytes, self.fixed_bytes + self.per_sample_bytes * micro_batch)

    def largest(self, device_bytes: float, *, margin: float = MARGIN) -> int | None:
        """The largest micro batch whose peak leaves `margin` of a device free; 0 if not even one sample's does.

        None where memory does not grow with the micro batch, so that there is no largest.

        >>> MemoryModel(fixed_bytes=0, per_sample_bytes=120).largest(4000, margin=0.1)
        30
        """
        positive("device_bytes", device_bytes)
        if not 0.0 <= margin < 1.0:
            raise ValueError(f"margin = {margin!r}: must be at least 0 and below 1, such as {MARGIN}")
        room = device_bytes * (1.0 - margin)
        if self.least_bytes > room or self.fixed_bytes > room:
            return 0
        if self.per_sample_bytes <= 0:
            return None
        return math.floor((room - self.fixed_bytes) / self.per_sample_bytes * (1.0 + 1e-12))


def fit_memory(peaks: Mapping[int, float]) -> MemoryModel:
    """The line through peak bytes by micro batch.

    A peak is the largest over an update's moments, each a line in the micro batch, and so bends upwards: where small
    micro batches do not lie on the line of the larger ones, they are left out, as many as needed for `FITS`.

    Args:
        peaks: bytes by micro batch; at least two.

    Raises:
        ValueError: for fewer.

    >>> fit_memory({1: 510.0, 8: 580.0, 16: 660.0})
    MemoryModel(fixed_bytes=500.0, per_sample_bytes=10.0, least_bytes=510.0, worst_error=0.0)
    """
    if len(peaks) < 2:
        raise ValueError(f"micro batches: {len(peaks)}; a memory model needs at least 2")
    micro = np.array(sorted(peaks), dtype=np.float64)
    size = np.array([peaks[int(m)] for m in micro], dtype=np.float64)
    found = None
    for skipped in range(len(micro) - 1):
        slope, fixed = np.polyfit(micro[skipped:], size[skipped:], 1)
        model = MemoryModel(
            fixed_bytes=round(float(fixed), 3),
            per_sample_bytes=round(float(slope), 6),
            least_bytes=float(size[0]),
        )
        error = max(round(abs(model.peak(m) / peaks[m] - 1.0), 9) for m in sorted(peaks))
        if found is None or error < found.worst_error:
            found = MemoryModel(
                fixed_bytes=model.fixed_bytes,
                per_sample_bytes=model.per_sample_bytes,
                least_bytes=model.least_bytes,
                worst_error=error,
            )
        if error <= FITS:
            break
    assert found is not None
    return found


def accumulation_finding(peaks: Mapping[int, float]) -> str | None:
    """What is wrong where memory grows with accumulation, which must hold one micro batch at a time; else None.

    Args:
        peaks: peak bytes by accumulation >= 2 at one micro batch. One pass alone may hold less than several.

    >>> accumulation_finding({2: 1000.0, 4: 1000.0, 8: 1004.0})
    >>> accumulation_finding({2: 1000.0, 4: 1200.0})
    'memory grows with accumulation: 1,200 bytes at 4 against 1,000 at 2. Does the task keep losses or outputs of \
earlier passes, or their graphs?'
    """
    least, most = min(peaks), max(peaks, key=lambda a: (peaks[a], -a))
    if peaks[most] <= peaks[least] * (1.0 + FLAT):
        return None
    return (
        f"memory grows with accumulation: {peaks[most]:,.0f} bytes at {most} against {peaks[least]:,.0f} at {least}. "
        "Does the task keep losses or outputs of earlier passes, or their graphs?"
    )


def largest_samples(sizes: Sequence[float], count: int) -> list[int]:
    """Which `count` samples of these sizes (tokens, pixels) make the largest batch, the largest first.

    >>> largest_samples([20, 120, 20, 60], 2)
    [1, 3]
    """
    whole("count", count)
    order = np.argsort(-np.asarray(sizes, dtype=np.float64), kind="stable")
    return [int(i) for i in order[:count]]
