"""Batches that a study may place by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.config.spec import SweepSpec
from orchestrator.theory import batch_plan
from orchestrator.theory.ladder import around

LEAST_PLACED = 5


def places(spec: SweepSpec, most: int) -> list[int]:
    """Powers of two, in units of the workers, up to `most` samples that the spec can split."""
    workers = spec.cluster.workers
    unit = 1 if workers & (workers - 1) == 0 else workers
    found = []
    for batch in (unit * 2**k for k in range(40)):
        try:
            batch_plan.plan(
                batch,
                workers,
                micro_batch=spec.batch.fixed_micro,
                accumulation=spec.batch.accumulation,
                micro_batch_max=spec.batch.micro_batch_max,
            )
        except batch_plan.InfeasiblePlan:
            continue
        if batch <= most:
            found.append(batch)
    return found


def around_noise(centre: float, possible: Sequence[int]) -> tuple[int, ...]:
    """A ladder around `centre` samples out of the `possible` batches, ascending; all of them if they are few.

    >>> around_noise(30.0, [4, 8, 16, 32, 64, 128])
    (4, 8, 16, 64, 128)
    """

    def far(batch: int, of: float) -> float:
        return abs(math.log(batch / of))

    if not possible:
        return ()
    ladder = {min(possible, key=lambda batch: far(batch, asked)) for asked in around(max(centre, 1.0))}
    spare = sorted(set(possible) - ladder, key=lambda batch: far(batch, centre))
    ladder |= set(spare[: max(0, LEAST_PLACED - len(ladder))])
    return tuple(sorted(ladder))
