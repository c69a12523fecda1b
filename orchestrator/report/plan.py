"""What `--dry-run` shows: the whole plan of a sweep as plain data, made before anything is started."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.theory.batch_plan import BatchPlan


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """What is tried for one dotted key: `text` for people, and `count` values (None for a continuous range)."""

    key: str
    text: str
    count: int | None


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """One reachable global batch: how it is made, and what a trial with it does.

    `evaluations` counts the evaluations of a trial that trains to its budget.
    """

    plan: BatchPlan
    updates: int
    evaluations: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep before it starts.

    Args:
        objective: one phrase, as of `Objective.describe`.
        search: one phrase on sampler, early stopping and repeats.
        trials: suggestions that the search makes.
        trials_at_once: how many of them train at the same time: one a gang.
        workers_per_gang: data-parallel workers of a trial.
        needed: Ray resources of all gangs together, such as ``{"CPU": 4}``.
        available: what the cluster has of them.
    """

    name: str
    task: str
    objective: str
    search: str
    candidates: tuple[Candidates, ...]
    batches: tuple[PlannedBatch, ...]
    budget_samples: int
    eval_every_samples: int
    trials: int
    trials_at_once: int
    gangs: int
    workers_per_gang: int
    needed: Mapping[str, float]
    available: Mapping[str, float]
    output: str
    tracking_uri: str
    warnings: tuple[str, ...] = field(default=())

    @property
    def combinations(self) -> int | None:
        """How many settings the space holds; None if any parameter is continuous."""
        counts = [candidate.count for candidate in self.candidates]
        return math.prod(n for n in counts if n is not None) if None not in counts else None
