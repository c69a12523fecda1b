"""What the timings of a record tell: speed by geometry, knees, scaling, the price of accumulation, what limits."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.probe.plan import PLAIN
from orchestrator.probe.record import TIMED, geometry_of
from orchestrator.theory.critical_batch import Estimate
from orchestrator.theory.geometry import Geometry
from orchestrator.theory.knees import find_knees
from orchestrator.theory.limits import Roofline, what_limits
from orchestrator.theory.recommendation import quotient, scaled
from orchestrator.theory.rounds import ratio, typical
from orchestrator.theory.throughput import StepTimeModel, Timing, fit_step_time

PARTS = ("data", "forward", "backward", "communication", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A geometry that was timed.

    Attributes:
        medians: seconds of an update, the median of each round, by round.
        shares: of an update's time, by part.
        utilisation: of the devices, in [0, 1]; None where it is not known.
        updates: that were timed.
    """

    geometry: Geometry
    medians: Mapping[int, float]
    shares: Mapping[str, float]
    utilisation: float | None
    updates: int

    @property
    def step_s(self) -> Estimate:
        """Seconds of an update."""
        return typical(list(self.medians.values()))

    @property
    def per_s(self) -> Estimate:
        """Samples a second."""
        return quotient(
            Estimate(**dict.fromkeys(("value", "low", "high"), float(self.geometry.global_batch))), self.step_s
        )


def timed_of(events: Sequence[Mapping[str, Any]], variant: str = PLAIN) -> dict[Geometry, Timed]:
    """What a record holds of a variant, in the order in which it was timed first."""
    found: dict[Geometry, list[Mapping[str, Any]]] = {}
    for event in events:
        if event["event"] == TIMED and event["asked"]["variant"] == variant and not event["error"]:
            found.setdefault(geometry_of(event["asked"]), []).append(event)
    return {geometry: _timed(geometry, of_it) for geometry, of_it in found.items()}


def _timed(geometry: Geometry, events: Sequence[Mapping[str, Any]]) -> Timed:
    used = [event["utilisation"] for event in events if event.get("utilisation") is not None]
    return Timed(
        geometry=geometry,
        medians={event["asked"]["round"]: float(np.median(event["step_s"])) for event in events},
        shares={name: float(np.mean([event["shares"][name] for event in events])) for name in PARTS},
        utilisation=float(np.mean(used)) if used else None,
        updates=sum(len(event["step_s"]) for event in events),
    )


def compared(above: Timed, below: Timed) -> Estimate:
    """How many times as long an update of the first lasts, by the rounds that both were timed in."""
    both = sorted(above.medians.keys() & below.medians.keys())
    return ratio([above.medians[at] for at in both], [below.medians[at] for at in both]) if both else Estimate()


def fitted(timed: Mapping[Geometry, Timed]) -> StepTimeModel | str:
    """The model of the step time, or why there is none."""
    timings = [Timing(geometry=g, step_s=s) for g, one in timed.items() for s in one.medians.values()]
    try:
        return fit_step_time(timings)
    except ValueError as error:
        return str(error)


def rows(timed: Mapping[Geometry, Timed]) -> list[dict[str, Any]]:
    """A row a geometry."""
    return [
        {
            **plain(one.geometry),
            "step_s": dataclasses.asdict(one.step_s),
            "samples_per_second": dataclasses.asdict(one.per_s),
            "shares": dict(one.shares),
            "utilisation": one.utilisation,
            "updates": one.updates,
        }
        for one in timed.values()
    ]


def knees(timed: Mapping[Geometry, Timed]) -> list[dict[str, Any]]:
    """The knees for each number of workers, with the reason where there are none."""
    found: list[dict[str, Any]] = []
    for world in sorted({g.world_size for g in timed}):
        curve = [one for g, one in timed.items() if g.world_size == world and g.accumulation == 1]
        timings = [Timing(geometry=one.geometry, step_s=s) for one in curve for s in one.medians.values()]
        try:
            found.append({"world_size": world, "reason": "", **dataclasses.asdict(find_knees(timings))})
        except ValueError as error:
            found.append({"world_size": world, "reason": str(error)})
    return found


def scaling(timed: Mapping[Geometry, Timed]) -> dict[str, list[dict[str, Any]]]:
    """Efficiency of several workers: weak at the same micro batch, strong at the same global batch.

    Both are the speed of W workers over W times that of one, which has the same work a worker, or the same altogether.
    """
    found: dict[str, list[dict[str, Any]]] = {"weak": [], "strong": []}
    for geometry, many in timed.items():
        world, micro = geometry.world_size, geometry.micro_batch
        if world == 1 or geometry.accumulation > 1:
            continue
        for kind, alone in (("weak", Geometry(micro_batch=micro)), ("strong", Geometry(micro_batch=micro * world))):
            if alone in timed:
                # Times as much work as the one worker's update does, over times as long, over workers.
                work = geometry.global_batch / alone.global_batch / world
                efficiency = scaled(compared(timed[alone], many), work)
                found[kind].append({**plain(geometry), "efficiency": dataclasses.asdict(efficiency)})
    return found


def accumulation(timed: Mapping[Geometry, Timed]) -> list[dict[str, Any]]:
    """What it costs to reach a global batch by accumulation instead of memory: times as long for the same samples."""
    found = []
    for geometry, split in timed.items():
        whole = dataclasses.replace(geometry, micro_batch=geometry.micro_batch * geometry.accumulation, accumulation=1)
        if geometry.accumulation > 1 and whole in timed:
            found.append({**plain(geometry), "time": dataclasses.asdict(compared(split, timed[whole]))})
    return found


def limits(
    timed: Mapping[Geometry, Timed],
    model: StepTimeModel,
    work: Mapping[int, Mapping[str, float]],
    device: Roofline | None,
) -> list[dict[str, Any]]:
    """What limits the smallest, a middle and the largest micro batch, for each number of workers."""
    found = []
    for world in sorted({g.world_size for g in timed}):
        curve = sorted((g for g in timed if g.world_size == world and g.accumulation == 1), key=lambda g: g.micro_batch)
        for geometry in dict.fromkeys((curve[0], curve[len(curve) // 2], curve[-1])) if curve else ():
            data = timed[geometry].shares["data"]
            communication = min(model.communication_share(geometry), 1.0 - data)
            overhead = min(model.overhead_share(geometry), 1.0 - data - communication)
            intensity = _intensity(geometry.micro_batch, work)
            limited = what_limits(
                data=data, communication=communication, overhead=overhead, intensity=intensity, device=device
            )
            found.append({**plain(geometry), **dataclasses.asdict(limited), "intensity": intensity})
    return found


def fall(timed: Mapping[Geometry, Timed]) -> Iterator[str]:
    """Sentences on micro batches that are slower than smaller ones."""
    curve = sorted((g for g in timed if g.world_size == 1 and g.accumulation == 1), key=lambda g: g.micro_batch)
    for before, after in itertools.pairwise(curve):
        slower = compared(timed[after], timed[before])
        growth = after.micro_batch / before.micro_batch
        if slower.low is not None and slower.low > growth:
            yield f"micro batch {after.micro_batch} is slower a sample than {before.micro_batch}"


def plain(geometry: Geometry) -> dict[str, int]:
    """A geometry as columns of a table."""
    names = ("micro_batch", "accumulation", "world_size", "nodes", "global_batch")
    return {name: getattr(geometry, name) for name in names}


def _intensity(micro: int, work: Mapping[int, Mapping[str, float]]) -> float | None:
    """Operations a byte at a micro batch, between those that were counted: both grow as lines."""
    if len(work) < 2:
        return None
    at = sorted(work)
    flops, moved = (np.interp(micro, at, [work[m][name] for m in at]) for name in ("flops", "moved_bytes"))
    return float(flops / moved) if moved else None
