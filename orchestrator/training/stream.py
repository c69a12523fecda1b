"""The order of training samples: an endless concatenation of one permutation an epoch.

A sample's id is a pure function of (seed, position), so there is no state to save, no dropped tail and no padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from orchestrator.theory.batch_plan import BatchPlan

Array = np.ndarray[Any, Any]
# Sets the keys of permutations apart from those of `draws.Draws`, which are small numbers.
_PERMUTATION = 2**63
_CACHED_EPOCHS = 2


class Window(NamedTuple):
    """Positions ``[start, stop)`` of the stream: one micro batch of one worker."""

    start: int
    stop: int


class Stream:
    """The sample ids of one trial.

    Args:
        seed: the trial's seed.
        size: samples in the training set, at least 1. The two epochs at hand take 8 * `size` bytes each.
    """

    def __init__(self, seed: int, size: int) -> None:
        if size < 1:
            raise ValueError(f"a stream needs at least 1 sample, not {size}")
        self.seed, self.size = seed, size
        self._epochs: dict[int, Array] = {}

    def ids(self, start: int, stop: int) -> Array:
        """Sample ids at positions ``[start, stop)``: int64 of shape ``[stop - start]``."""
        first, last = start // self.size, (max(stop, start + 1) - 1) // self.size
        parts = []
        for epoch in range(first, last + 1):
            offset = epoch * self.size
            parts.append(self._permutation(epoch)[max(start - offset, 0) : max(stop - offset, 0)])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _permutation(self, epoch: int) -> Array:
        order = self._epochs.get(epoch)
        if order is None:
            key = np.array([self.seed & (2**64 - 1), epoch + _PERMUTATION], dtype=np.uint64)
            order = np.random.Generator(np.random.Philox(key=key)).permutation(self.size)
            while len(self._epochs) >= _CACHED_EPOCHS:
                self._epochs.pop(next(iter(self._epochs)))
            self._epochs[epoch] = order
        return order


def ids(seed: int, start: int, stop: int, n: int) -> Array:
    """Sample ids at positions ``[start, stop)`` of the stream over `n` samples; see `Stream`."""
    return Stream(seed, n).ids(start, stop)


def windows(plan: BatchPlan, rank: int, start: int, stop: int) -> Iterator[Window]:
    """The micro batches of `rank`, in the order it trains on them, while fewer than `stop` samples are seen.

    The update that starts at s samples seen uses positions ``[s, s + global_batch)``; a rank's share of them is
    contiguous, and so is each micro batch.
    """
    for seen in range(start, stop, plan.global_batch):
        first = seen + rank * plan.per_worker_batch
        for micro in range(plan.accumulation):
            yield Window(first + micro * plan.micro_batch, first + (micro + 1) * plan.micro_batch)
