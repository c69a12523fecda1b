"""The sections of a spec that the study methods branch, scan and scaling read, below the section of the study."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator

from orchestrator.config.fields import MOST, Count, Positive, Section, whole
from orchestrator.config.refusal import Refusal

LEAST_EVALUATIONS = 16


class BranchSection(Section):
    """How `--method branch` measures. One run at `batch.reference` leaves checkpoints; from each, branches at other
    batches go on for the same samples, with `lr.base` carried over by `lr.rule`.
    """

    checkpoints: Count = 3
    """Checkpoints to branch from: the last at `budget.samples`, each before it at half of the samples of the next."""

    samples: Count | None = None
    """Length of every branch; null is a quarter of `budget.samples`."""

    seeds: Count = 2
    """Branches at each batch, under other sample orders; two or more give intervals by the scatter between seeds."""

    tolerance: Positive = 0.01
    """How much higher than the smallest batch's the loss after a branch may be, in units of the metric."""

    floor: float | None = None
    """A value that the metric cannot undercut, if it is known; null takes rates at a loss which all branches reach."""

    evaluations: Annotated[int, BeforeValidator(whole), Field(ge=LEAST_EVALUATIONS, le=MOST)] = 64
    """Evaluations of a branch, at least 16; fewer where it makes fewer updates."""


class ScanSection(Section):
    """How `--method scan` measures: a short run at each batch, with `lr.base` carried over by `lr.rule`."""

    updates: Annotated[int, BeforeValidator(whole), Field(ge=LEAST_EVALUATIONS, le=MOST)] = 300
    """Updates at each batch, at least 16."""

    seeds: Count = 1
    """Runs at each batch."""

    evaluations: Annotated[int, BeforeValidator(whole), Field(ge=LEAST_EVALUATIONS, le=MOST)] = 24
    """Evaluations within the samples that every batch sees, at least 16; later ones grow apart."""


def _workers(value: Any) -> tuple[int, ...] | Literal["auto"]:
    if value == "auto":
        return "auto"
    if not isinstance(value, list | tuple):
        remedy = "write auto, or a list such as [1, 2, 4, 8]"
        raise Refusal("must be auto or a list of worker counts", value=value, remedy=remedy)
    counts = [whole(count) for count in value]
    for count in counts:
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST:
            raise Refusal("a worker count is a whole number of at least 1", value=count, remedy="write 1 or more")
    if len(set(counts)) < max(2, len(counts)):
        rule, remedy = "at least two worker counts are compared, all different", "write such as [1, 8]"
        raise Refusal(rule, value=counts, remedy=remedy)
    return tuple(sorted(counts))


def _plain(workers: tuple[int, ...] | str) -> list[int] | str:
    return workers if isinstance(workers, str) else list(workers)


Workers = Annotated[tuple[int, ...] | Literal["auto"], PlainValidator(_workers), PlainSerializer(_plain)]


class ScalingSection(Section):
    """How `--method scaling` measures. For each worker count the global batch is that many times
    `per_worker_batch`, with `lr.base` carried over by `lr.rule`; all train `budget.samples` under the same seeds.
    """

    workers: Workers = "auto"
    """Worker counts, at least two; auto is 1 and `cluster.workers`. So many need not be there: what is trained depends
    on the global batch alone."""

    per_worker_batch: Count | None = None
    """Samples that one worker contributes to an update; null is `batch.micro` times `batch.accumulation`, or
    `batch.global` over `cluster.workers`."""

    seeds: Annotated[int, BeforeValidator(whole), Field(ge=2, le=MOST)] = 12
    """Runs at each worker count, at least 2, under the same seeds."""

    tolerance: Positive | None = None
    """The least loss of quality that matters, in units of the metric; null is its standard deviation between seeds at
    the fewest workers."""
