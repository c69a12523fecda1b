"""What to run: samples to the target by batch joined with throughput by geometry, intervals carried through."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.theory.critical_batch import Estimate
from orchestrator.theory.geometry import Geometry

_HOUR_S = 3600.0
_SAME = 1e-9


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One geometry and what reaching the target takes with it.

    Attributes:
        geometry: one worker a device.
        samples: to the target, at its global batch.
        per_s: samples a second.
        time_s: seconds to the target.
        device_hours: the same times the devices, in hours.
    """

    geometry: Geometry
    samples: Estimate
    per_s: Estimate
    time_s: Estimate
    device_hours: Estimate

    @property
    def time(self) -> float:
        """The value of `time_s`."""
        return _value(self.time_s)

    @property
    def cost(self) -> float:
        """The value of `device_hours`."""
        return _value(self.device_hours)


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The choices that nothing beats in both time and device-hours, and three of them by name.

    Attributes:
        front: the fastest first, each cheaper than those before it.
        fastest: least time to the target.
        cheapest: least device-hours.
        balanced: the front's knee: from here, going faster by some share costs a larger share of device-hours.
        choices: all that could be judged.
        left_out: the others, with the reason.
    """

    front: tuple[Choice, ...]
    fastest: Choice
    cheapest: Choice
    balanced: Choice
    choices: tuple[Choice, ...]
    left_out: tuple[tuple[Geometry, str], ...]


class NothingToRecommend(ValueError):
    """No geometry could be judged; `left_out` says why of each."""

    def __init__(self, left_out: Sequence[tuple[Geometry, str]]) -> None:
        self.left_out = tuple(left_out)
        reasons = dict.fromkeys(why for _, why in left_out)
        super().__init__(f"nothing to recommend: {'; '.join(reasons) or 'no geometry was given'}")


def recommend(
    geometries: Iterable[Geometry],
    samples_to_target: Callable[[int], Estimate],
    throughput: Callable[[Geometry], Estimate],
    *,
    studied: tuple[int, int] | None = None,
) -> Recommendation:
    r"""Judge every feasible geometry by time to the target and device-hours.

    .. math::
        t = \frac{E(B)}{r}, \qquad c = W t

    for E samples to the target at the global batch B, throughput r and W devices. The interval of a quotient adds the
    distances of its parts' ends from their values in log space as squares, as if they were independent, which a study's
    and a timing's errors are. The knee is the choice with the least product of time and device-hours. Where throughput
    is proportional to the batch, the product is that of updates and samples to the target, and the knee lies at the
    critical batch.

    Source: McCandlish et al. 2018 (arXiv:1812.06162), section 2.3, for time against compute.

    Args:
        geometries: those that fit in memory and that the cluster holds.
        samples_to_target: by global batch, such as `CriticalBatch.predict`.
        throughput: samples a second, such as `StepTimeModel.throughput`.
        studied: the least and the largest global batch that the study tried; others are left out.

    Raises:
        NothingToRecommend: if none can be judged.

    >>> def samples(b):
    ...     return Estimate(value=1e6 * (1 + b / 512), low=1e6 * (1 + b / 600), high=1e6 * (1 + b / 400))
    >>> def per_s(g):
    ...     return Estimate(value=100.0 * g.world_size, low=95.0 * g.world_size, high=105.0 * g.world_size)
    >>> found = recommend([Geometry(micro_batch=64, world_size=w) for w in (1, 2, 4, 8, 16, 32)], samples, per_s)
    >>> [c.geometry.world_size for c in (found.fastest, found.balanced, found.cheapest)]
    [32, 8, 1]
    """
    choices: list[Choice] = []
    left_out: list[tuple[Geometry, str]] = []
    for geometry in dict.fromkeys(geometries):
        found = _choice(geometry, samples_to_target, throughput, studied)
        if isinstance(found, str):
            left_out.append((geometry, found))
        else:
            choices.append(found)
    if not choices:
        raise NothingToRecommend(left_out)
    front = pareto_front(choices)
    return Recommendation(
        front=front,
        fastest=front[0],
        cheapest=front[-1],
        balanced=min(front, key=lambda c: (c.time * c.cost, c.cost)),
        choices=tuple(sorted(choices, key=lambda c: (c.time, c.cost))),
        left_out=tuple(left_out),
    )


def pareto_front(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """Those that no other beats in time without costing more; of equals the one with fewer devices, then passes."""
    front: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.time, c.cost, c.geometry.world_size, c.geometry.accumulation)):
        if not front or choice.cost < front[-1].cost * (1.0 - _SAME):
            front.append(choice)
    return tuple(front)


def devices_fed(critical_batch: Estimate, efficient_micro: float) -> Estimate:
    """How many devices the critical batch can feed with a micro batch at which each works efficiently, at least 1.

    Beyond them, samples-to-target is more than twice its least, or devices run below their knee.

    Args:
        critical_batch: samples, with its interval.
        efficient_micro: such as the ceiling's knee, samples, > 0.

    >>> devices_fed(Estimate(value=1000.0, low=700.0, high=1500.0), 64.0)
    Estimate(value=15.0, low=10.0, high=23.0)
    """
    if not efficient_micro > 0:
        raise ValueError(f"efficient_micro = {efficient_micro!r}: must be above 0")

    def fed(batch: float | None) -> float | None:
        return None if batch is None else max(1.0, float(math.floor(batch / efficient_micro + _SAME)))

    return Estimate(value=fed(critical_batch.value), low=fed(critical_batch.low), high=fed(critical_batch.high))


def quotient(above: Estimate, below: Estimate) -> Estimate:
    """The ratio of two independent estimates of positive numbers, ends combined as squares in log space.

    >>> quotient(Estimate(value=8.0, low=4.0, high=16.0), Estimate(value=2.0, low=2.0, high=2.0))
    Estimate(value=4.0, low=2.0, high=8.0)
    """
    if above.value is None or below.value is None:
        return Estimate()
    value = above.value / below.value
    low = high = None
    if above.low and below.high:
        low = value * math.exp(-math.hypot(math.log(above.value / above.low), math.log(below.high / below.value)))
    if above.high and below.low:
        high = value * math.exp(math.hypot(math.log(above.high / above.value), math.log(below.value / below.low)))
    return Estimate(value=value, low=low, high=high)


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """`estimate` times a positive number that is known."""
    ends = (None if end is None else end * factor for end in (estimate.value, estimate.low, estimate.high))
    return Estimate(**dict(zip(("value", "low", "high"), ends, strict=True)))


def _choice(
    geometry: Geometry,
    samples_to_target: Callable[[int], Estimate],
    throughput: Callable[[Geometry], Estimate],
    studied: tuple[int, int] | None,
) -> Choice | str:
    batch = geometry.global_batch
    if studied and not studied[0] <= batch <= studied[1]:
        return f"global batch {batch} lies outside of the batches studied, {studied[0]} to {studied[1]}"
    samples, per_s = samples_to_target(batch), throughput(geometry)
    if samples.value is None:
        return f"samples to the target at global batch {batch} are not determined"
    if per_s.value is None:
        return f"the throughput of {geometry} is not determined"
    time_s = quotient(samples, per_s)
    hours = scaled(time_s, geometry.world_size / _HOUR_S)
    return Choice(geometry=geometry, samples=samples, per_s=per_s, time_s=time_s, device_hours=hours)


def _value(estimate: Estimate) -> float:
    assert estimate.value is not None
    return estimate.value
