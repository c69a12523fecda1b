"""Randomness of samples, drawn from a counter keyed by (seed, position in the stream).

What a sample draws depends on neither its rank, nor its loader worker, nor how the batch is split, and a resumed run
draws what the uninterrupted run would have drawn.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_WORDS = 4  # 64-bit words in one block of the Philox counter


class Draws:
    """The randomness of the samples at `positions` of the stream, independent from sample to sample.

    Calling the same method twice gives the same numbers: name a `stream` to draw several independent sets.

    Args:
        seed: the trial's seed.
        positions: int64 of shape ``[n]``; position p is the p-th training sample since the start of the run.
    """

    def __init__(self, seed: int, positions: Array) -> None:
        self.seed = seed
        self.positions = np.asarray(positions, dtype=np.int64)

    def raw(self, count: int, stream: int = 0) -> Array:
        """uint64 of shape ``[n, count]``."""
        blocks = -(-count // _WORDS)
        out = np.empty((len(self.positions), blocks * _WORDS), dtype=np.uint64)
        for first, last in _runs(self.positions):
            bits = np.random.Philox(key=np.array([self.seed & (2**64 - 1), stream + 1], dtype=np.uint64))
            bits.advance(int(self.positions[first]) * blocks)
            out[first:last] = bits.random_raw((last - first) * blocks * _WORDS).reshape(last - first, -1)
        return out[:, :count]

    def uniform(self, count: int, stream: int = 0) -> Array:
        """float64 in [0, 1) of shape ``[n, count]``."""
        return (self.raw(count, stream) >> np.uint64(11)) * 2.0**-53

    def normal(self, count: int, stream: int = 0) -> Array:
        """Standard normal float64 of shape ``[n, count]``, by Box and Muller's transform."""
        half = -(-count // 2)
        u = self.uniform(2 * half, stream)
        radius = np.sqrt(-2.0 * np.log1p(-u[:, :half]))
        angle = 2.0 * np.pi * u[:, half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :count]

    def normal32(self, count: int, stream: int = 0) -> Array:
        """Standard normal float32 of shape ``[n, count]``, several times as fast as `normal`.

        Box and Muller's transform on the two 32-bit halves of each word, so the numbers are others than `normal`'s. The
        largest magnitude possible is 6.77.
        """
        half = -(-count // 2)
        words = np.ascontiguousarray(self.raw(half, stream), dtype="<u8")
        u = words.view("<u4").astype(np.float32)
        u += np.float32(0.5)
        u *= np.float32(2.0**-32)
        radius = np.sqrt(np.float32(-2.0) * np.log(u[:, :half]))
        angle = np.float32(2.0 * np.pi) * u[:, half:]
        out = np.empty((len(u), 2 * half), dtype=np.float32)
        np.multiply(radius, np.cos(angle), out=out[:, :half])
        np.multiply(radius, np.sin(angle), out=out[:, half:])
        return out[:, :count]

    def seeds(self) -> Array:
        """uint64 of shape ``[n]``: a seed a sample, for code that has its own generator."""
        return self.raw(1, stream=2**32)[:, 0]


def _runs(positions: Array) -> list[tuple[int, int]]:
    """Maximal runs of consecutive positions, as (first, last) offsets: a rank's share of a batch is one run."""
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    edges = [0, *cuts.tolist(), len(positions)]
    return [(a, b) for a, b in itertools.pairwise(edges) if b > a]
