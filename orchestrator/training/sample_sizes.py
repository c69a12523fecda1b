"""Which samples of some data are the largest: memory must be tried with those, for they come sooner or later."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.theory.memory import largest_samples
from orchestrator.training.batches import tensors
from orchestrator.training.draws import Draws
from orchestrator.training.requests import Request, reader
from orchestrator.training.task import Fetchable

LOOK_S = 1.0
"""Seconds for which data are looked through."""
_KEPT = 3
_ALIKE = 64  # of the largest size that are kept: one alone may have no weight
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True, kw_only=True)
class LargestSamples:
    """The largest samples of some data.

    Attributes:
        ids: three of them, the largest first; the same again where there are fewer.
        alike: those of the largest size, 64 at most.
        looked_at: samples whose size was seen.
        size: samples that there are.
    """

    ids: tuple[int, ...]
    alike: tuple[int, ...]
    looked_at: int
    size: int

    @property
    def unsure(self) -> str:
        """What is not known where not all were seen, or an empty string."""
        if self.looked_at == self.size:
            return ""
        return f"{self.looked_at:,} of {self.size:,} samples were looked at for the largest"


def find_largest(data: Any, *, seconds: float = LOOK_S) -> LargestSamples:
    """Look through a task's training data, evenly spread, for so many seconds; at least at one sample.

    Args:
        data: `Fetchable`, or a map-style Dataset. Random augmentation draws as at the start of a run with seed 0.
        seconds: after which those seen so far are all that counts.
    """
    read, size, deadline = reader(data), len(data), time.monotonic() + seconds
    seen: list[tuple[int, int]] = []
    for i in _spread(size):
        batch = read(Request(np.array([i], dtype=np.int64), 0, 0))
        seen.append((i, sum(tensor.numel() for tensor in tensors(batch))))
        if time.monotonic() > deadline:
            break
    best = [seen[at][0] for at in largest_samples([numbers for _, numbers in seen], _KEPT)]
    most = max(numbers for _, numbers in seen)
    alike = [i for i, numbers in seen if numbers == most][:_ALIKE]
    return LargestSamples(ids=tuple((best * _KEPT)[:_KEPT]), alike=tuple(sorted(alike)), looked_at=len(seen), size=size)


class LargestData:
    """A `Fetchable` as large as `data`, each of whose samples is one of the largest.

    Args:
        data: what is read.
        largest: their ids.
        told: called with the rows of every batch that is asked for.
    """

    def __init__(self, data: Any, largest: Sequence[int], told: Callable[[int], None]) -> None:
        self._data, self._largest, self._told = data, list(largest), told
        self._read = reader(data)

    def __len__(self) -> int:
        return len(self._data)

    def fetch(self, indices: np.ndarray[Any, Any], draws: Draws | None) -> Any:
        """The largest samples in turn, as many as there are indices, augmented as those would be."""
        self._told(len(indices))
        ids = np.resize(np.array(self._largest, dtype=np.int64), len(indices))
        if isinstance(self._data, Fetchable):
            return self._data.fetch(ids, draws)
        return self._read(Request(ids, None, 0) if draws is None else Request(ids, draws.seed, int(draws.positions[0])))


def _spread(size: int) -> Iterator[int]:
    """Every id once, neighbours far apart: multiples of a step near the golden section that shares no factor."""
    step = max(1, round(_GOLDEN * size))
    while math.gcd(step, size) > 1:
        step += 1
    return (i * step % size for i in range(size))
