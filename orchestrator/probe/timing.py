"""Times updates: every geometry once a round, all in turn, so that what slows the machine meets them alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from orchestrator.cluster.probers import Probers
from orchestrator.errors import TrialError
from orchestrator.probe.experiment import ProbeExperiment
from orchestrator.probe.plan import PLAIN, ProbePlan
from orchestrator.probe.record import TIMED, asked_of
from orchestrator.theory.geometry import Geometry

WARMUP = 2
LEAST_UPDATES, MOST_UPDATES = 3, 40


@dataclass(kw_only=True)
class Clock:
    """Times geometries of a plan, and remembers how long their updates take.

    Attributes:
        plan: what is timed.
        experiment: keeps the record; what is in it is not timed again.
        probers: where.
        seconds: median of an update by variant and geometry, as of the last time.
    """

    plan: ProbePlan
    experiment: ProbeExperiment
    probers: Probers
    seconds: dict[tuple[str, Geometry], float] = field(default_factory=dict)

    def time(
        self, geometry: Geometry, at: int, *, variant: str = PLAIN, changes: Mapping[str, object] | None = None
    ) -> float | None:
        """Median seconds of an update in round `at`; None where it does not fit in memory.

        Raises:
            TrialError: the task failed.
            GangError: a process died or hung.
        """
        asked = {"variant": variant, "round": at, **asked_of(geometry)}
        found = self.experiment.once(TIMED, asked, lambda: self._measured(geometry, variant, changes))
        if found["error"]:
            return None
        median = float(np.median(found["step_s"]))
        self.seconds[variant, geometry] = median
        return median

    def _measured(self, geometry: Geometry, variant: str, changes: Mapping[str, object] | None) -> dict[str, Any]:
        if self.probers.world_size != geometry.world_size:
            self.probers.join(geometry.world_size)
        spec = self.plan.trial(geometry, changes).to_dict()
        answers = self.probers.time(spec, updates=self._updates(geometry, variant), warmup=WARMUP)
        wrong = [answer for answer in answers if "error" in answer]
        if wrong:
            told = next((answer for answer in wrong if not answer.get("elsewhere")), wrong[0])
            if not told.get("out_of_memory"):
                raise TrialError(f"{geometry}: {told['error']}")
            return {"error": told["error"], "step_s": [], "shares": {}}
        # Every rank waits for the slowest in each update's reduction.
        steps = np.max([answer["step_s"] for answer in answers], axis=0)
        shares = {name: float(np.mean([a["shares"][name] for a in answers])) for name in answers[0]["shares"]}
        return {"error": "", "step_s": steps.tolist(), "shares": shares, **_used(answers)}

    def _updates(self, geometry: Geometry, variant: str) -> int:
        known = self.seconds.get((variant, geometry)) or self._guess(geometry)
        if not known:
            return LEAST_UPDATES
        return min(MOST_UPDATES, max(LEAST_UPDATES, math.ceil(self.plan.spec.probe.seconds / known)))

    def _guess(self, geometry: Geometry) -> float:
        """From the nearest micro batch below, as often as there are passes; 0 where nothing is known."""
        near = [g for v, g in self.seconds if v == PLAIN and g.micro_batch <= geometry.micro_batch]
        if not near:
            return 0.0
        nearest = max(near, key=lambda g: g.micro_batch)
        passes = geometry.accumulation / nearest.accumulation * geometry.micro_batch / nearest.micro_batch
        return self.seconds[PLAIN, nearest] * passes


def _used(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How busy the devices were, where that is known."""
    known = [answer["utilisation"] for answer in answers if answer.get("utilisation") is not None]
    return {"utilisation": float(np.mean(known))} if known else {}


def time_all(clock: Clock, *, ceiling: int, variants: Mapping[str, Mapping[str, object]], nodes: int) -> None:
    """Find the micro batches to time on one worker, then time everything, round by round.

    Args:
        clock: times.
        ceiling: the largest micro batch that is expected to fit.
        variants: changes of the trial by name, timed at the largest micro batch of one worker.
        nodes: machines that hold the workers of a gang.
    """
    plan, ladder = clock.plan, _ladder(clock, ceiling)
    geometries = [Geometry(micro_batch=m) for m in ladder]
    geometries += [placed(g, plan, nodes) for g in plan.others(ladder)]
    failed: set[Geometry] = set()
    for at in range(plan.spec.probe.rounds):
        for geometry in geometries:
            if geometry not in failed and clock.time(geometry, at) is None:
                failed.add(geometry)
        for name, changes in variants.items():
            clock.time(Geometry(micro_batch=ladder[-1]), at, variant=name, changes=changes)
        clock.experiment.note(f"round {at + 1} of {plan.spec.probe.rounds}: {len(geometries)} geometries timed")


def placed(geometry: Geometry, plan: ProbePlan, nodes: int) -> Geometry:
    """The geometry with the nodes that its workers stand on: they fill one after the other."""
    per_node = math.ceil(plan.spec.cluster.workers / nodes)
    used = min(nodes, math.ceil(geometry.world_size / per_node))
    return Geometry(
        micro_batch=geometry.micro_batch,
        accumulation=geometry.accumulation,
        world_size=geometry.world_size,
        nodes=used,
    )


def _ladder(clock: Clock, ceiling: int) -> tuple[int, ...]:
    seconds: dict[int, float] = {}
    while (micro := clock.plan.next_micro(seconds, ceiling=ceiling)) is not None:
        found = clock.time(Geometry(micro_batch=micro), 0)
        if found is None:
            break
        seconds[micro] = found
    if not seconds:
        raise TrialError("not even a micro batch of one sample could be timed: it does not fit in memory")
    return tuple(seconds)
