"""How a global batch is made: micro batch x accumulation x world size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.theory._checks import whole


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """One global batch, split: ``global_batch == micro_batch * accumulation * world_size``.

    Raises:
        ValueError: if a factor is below 1 or the product does not hold.
    """

    global_batch: int
    micro_batch: int
    accumulation: int
    world_size: int

    def __post_init__(self) -> None:
        for name in ("global_batch", "micro_batch", "accumulation", "world_size"):
            whole(name, getattr(self, name))
        if self.micro_batch * self.accumulation * self.world_size != self.global_batch:
            raise ValueError(
                f"micro {self.micro_batch} x accumulation {self.accumulation} x world {self.world_size} "
                f"is {self.micro_batch * self.accumulation * self.world_size}, not the global batch {self.global_batch}"
            )

    @property
    def per_worker_batch(self) -> int:
        """Samples that one worker contributes to an update."""
        return self.micro_batch * self.accumulation

    def __str__(self) -> str:
        factors = f"micro {self.micro_batch} x accumulation {self.accumulation} x world {self.world_size}"
        return f"{self.global_batch} = {factors}"


class InfeasiblePlan(ValueError):
    """No split of the global batch meets the constraints.

    Attributes:
        rule: what does not hold, with the values.
        nearest: the feasible plans next below and next above by global batch, under the same constraints; only one
            where there is none on the other side, empty where no global batch is feasible at all.
    """

    def __init__(self, rule: str, nearest: tuple[BatchPlan, ...] = ()) -> None:
        super().__init__(rule, nearest)
        self.rule, self.nearest = rule, nearest

    def __str__(self) -> str:
        if not self.nearest:
            return f"{self.rule}. No global batch is feasible under these constraints: change them."
        return f"{self.rule}. Nearest feasible: {'; '.join(map(str, self.nearest))}."


def plan(
    global_batch: int,
    world_size: int,
    *,
    micro_batch: int | None = None,
    accumulation: int | None = None,
    micro_batch_max: int | None = None,
) -> BatchPlan:
    """Split a global batch over workers and micro batches: ``B = m * a * W``.

    What is given is kept, the rest is derived. With neither `micro_batch` nor `accumulation`, the micro batch is the
    largest divisor of ``B / W`` that is at most `micro_batch_max` (all of ``B / W`` without a limit), so that the
    accumulation is the least possible. Nothing is rounded: a global batch that cannot be met exactly is refused.

    Args:
        global_batch: B, samples an update.
        world_size: W, data-parallel workers.
        micro_batch: m, samples in one forward/backward of one worker.
        accumulation: a, micro batches per worker per update, >= 1.
        micro_batch_max: the largest m that a worker can hold, in samples.

    Raises:
        InfeasiblePlan: if no split meets the constraints; it carries the nearest global batches that can be split.
        ValueError: if an argument is not a whole number of at least 1.

    >>> plan(256, 4, micro_batch_max=24)
    BatchPlan(global_batch=256, micro_batch=16, accumulation=4, world_size=4)
    >>> plan(100, 2, micro_batch=16)
    Traceback (most recent call last):
    ...
    orchestrator.theory.batch_plan.InfeasiblePlan: global batch 100 must be a multiple of 32 (micro 16 x world 2). \
Nearest feasible: 96 = micro 16 x accumulation 3 x world 2; 128 = micro 16 x accumulation 4 x world 2.
    """
    whole("global_batch", global_batch)
    whole("world_size", world_size)
    given = {"micro_batch": micro_batch, "accumulation": accumulation, "micro_batch_max": micro_batch_max}
    for name, value in given.items():
        if value is not None:
            whole(name, value)
    if micro_batch is not None and micro_batch_max is not None and micro_batch > micro_batch_max:
        raise InfeasiblePlan(f"micro batch {micro_batch} must be at most micro_batch_max {micro_batch_max}")

    unit = (micro_batch or 1) * (accumulation or 1) * world_size
    most = math.inf  # the most units that a global batch may hold
    if accumulation is not None:
        most = micro_batch_max or math.inf if micro_batch is None else 1

    def split(units: int) -> BatchPlan:
        if micro_batch is None and accumulation is None:
            m = _largest_divisor(units, micro_batch_max or units)
        else:
            m = micro_batch or units
        return BatchPlan(
            global_batch=units * unit,
            micro_batch=m,
            accumulation=units * unit // (m * world_size),
            world_size=world_size,
        )

    units, rest = divmod(global_batch, unit)
    if rest == 0 and units <= most:
        return split(units)

    factors = [f"{name} {n}" for name, n in (("micro", micro_batch), ("accumulation", accumulation)) if n is not None]
    rule = f"global batch {global_batch} must be {'' if most == 1 else 'a multiple of '}{unit}"
    rule += f" ({' x '.join([*factors, f'world {world_size}'])})"
    if 1 < most < math.inf:
        rule += f" and at most {int(most) * unit} (micro_batch_max {micro_batch_max})"
    nearest = [n for n in (int(min(units, most)), units + 1) if 1 <= n <= most]
    raise InfeasiblePlan(rule, tuple(map(split, nearest)))


_plan = plan  # which `replan` hides behind the name of its argument


def replan(plan: BatchPlan, world_size: int, *, micro_batch_max: int | None = None) -> BatchPlan:
    """The same global batch over another number of workers: the accumulation changes, B does not.

    The micro batch never grows, because the given one is what is known to fit a worker's memory. It is the largest
    divisor of ``B / W`` within that limit. Nothing is rounded: where B is no multiple of W, it is refused.

    Args:
        plan: the split so far.
        world_size: W, workers from now on.
        micro_batch_max: a lower limit on the micro batch, in samples.

    Raises:
        InfeasiblePlan: as `plan`.
        ValueError: if an argument is not a whole number of at least 1.

    >>> replan(BatchPlan(global_batch=96, micro_batch=24, accumulation=1, world_size=4), 3)
    BatchPlan(global_batch=96, micro_batch=16, accumulation=2, world_size=3)
    >>> replan(BatchPlan(global_batch=96, micro_batch=24, accumulation=1, world_size=4), 4, micro_batch_max=12)
    BatchPlan(global_batch=96, micro_batch=12, accumulation=2, world_size=4)
    """
    most = plan.micro_batch if micro_batch_max is None else whole("micro_batch_max", micro_batch_max)
    return _plan(plan.global_batch, world_size, micro_batch_max=min(most, plan.micro_batch))


def _largest_divisor(number: int, limit: int) -> int:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return max(d for d in [*small, *(number // d for d in small)] if d <= limit)
