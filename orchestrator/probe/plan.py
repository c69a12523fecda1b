"""What the probe measures: trials of one spec in other geometries, and which geometries there are to time."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.config.spec import SweepSpec
from orchestrator.config.trial import TrialSpec
from orchestrator.theory.geometry import Geometry

PLAIN = ""
"""The variant without anything that saves memory."""
FLAT_GAIN = 0.03
"""Gain of speed by doubling below which a curve counts as flat, and how often in a row ends it."""
FLAT_TIMES = 3
_ACCUMULATIONS = (2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class ProbePlan:
    """One probe.

    Attributes:
        spec: as `config.probe_rules.as_probe` made it.
        baseline: its trial, of any plan.
        train_samples: in the task's training data.
    """

    spec: SweepSpec
    baseline: TrialSpec
    train_samples: int

    @property
    def worlds(self) -> tuple[int, ...]:
        """Numbers of workers: 1, 2, 4, ... and those of a gang."""
        workers = self.spec.cluster.workers
        powers = [2**k for k in range(workers.bit_length()) if 2**k < workers]
        return (*powers, workers)

    def cap(self, world_size: int) -> int:
        """The largest micro batch that the data allow so many workers."""
        most = self.train_samples // world_size
        return min(most, self.spec.probe.micro_max or most)

    def trial(self, geometry: Geometry, changes: Mapping[str, object] | None = None) -> TrialSpec:
        """The trial of a geometry, with fields of `TrialSpec` that a variant changes."""
        budget = max(self.baseline.budget_samples, geometry.global_batch)
        return dataclasses.replace(self.baseline, plan=geometry.plan, budget_samples=budget, **dict(changes or {}))  # type: ignore[arg-type]

    def next_micro(self, seconds: Mapping[int, float], *, ceiling: int) -> int | None:
        """What to time next on one worker, from the seconds an update by micro batch so far; None to stop."""
        if not seconds:
            return 1
        last = max(seconds)
        if 2 * last > min(self.cap(1), ceiling) or 2.0 * seconds[last] > self.spec.probe.longest_update_s:
            return None
        return None if _is_flat(seconds) else 2 * last

    def others(self, ladder: tuple[int, ...]) -> Iterator[Geometry]:
        """The other geometries, once the micro batches of one worker are known: accumulation in place of memory, and
        all of that on more workers."""
        for world in self.worlds:
            micros = [m for m in ladder if m <= self.cap(world)]
            if world > 1:
                yield from (Geometry(micro_batch=m, world_size=world) for m in micros)
            if not micros:
                continue
            most = micros[-1]
            found = [(most // a, a) for a in _ACCUMULATIONS if most % a == 0]
            found += [(micros[len(micros) // 3], a) for a in _ACCUMULATIONS[:2]]
            for micro, accumulation in dict.fromkeys(found):
                geometry = Geometry(micro_batch=micro, accumulation=accumulation, world_size=world)
                if geometry.global_batch <= self.train_samples:
                    yield geometry


def _is_flat(seconds: Mapping[int, float]) -> bool:
    micros = sorted(seconds)[-FLAT_TIMES - 1 :]
    if len(micros) <= FLAT_TIMES:
        return False
    speeds = [m / seconds[m] for m in micros]
    return all(after < before * (1.0 + FLAT_GAIN) for before, after in itertools.pairwise(speeds))
