"""The section of a spec that a critical-batch study reads; a sweep passes it over."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator

from orchestrator.config.duration import Duration
from orchestrator.config.fields import MOST, Count, Positive, Section, Share, whole
from orchestrator.config.refusal import Refusal
from orchestrator.config.short_sections import BranchSection, ScalingSection, ScanSection

LEAST_BATCHES = 3


def _batches(value: Any) -> tuple[int, ...] | Literal["auto"]:
    if value == "auto":
        return "auto"
    if not isinstance(value, list | tuple):
        remedy = "write auto, or a list such as [8, 16, 32, 64, 256]"
        raise Refusal("must be auto or a list of global batches", value=value, remedy=remedy)
    batches = [whole(batch) for batch in value]
    for batch in batches:
        if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= MOST:
            remedy = "write samples, such as 64"
            raise Refusal("a global batch is a whole number of at least 1", value=batch, remedy=remedy)
    if len(set(batches)) < len(batches):
        raise Refusal("a batch is given twice", value=batches, remedy="list it once")
    if len(batches) < LEAST_BATCHES:
        rule = f"a critical batch needs at least {LEAST_BATCHES} batches on both sides of it"
        raise Refusal(rule, value=batches, remedy="add some, each 2 to 4 times the one before")
    return tuple(sorted(batches))


def _plain(batches: tuple[int, ...] | str) -> list[int] | str:
    return batches if isinstance(batches, str) else list(batches)


Batches = Annotated[tuple[int, ...] | Literal["auto"], PlainValidator(_batches), PlainSerializer(_plain)]


class StudySection(Section):
    """How a critical-batch study measures. It tunes the learning rate of every batch of a ladder, within the range of
    `space.lr.base`, and the other keys of the space, to reach `objective.target` in the fewest samples.
    `budget.samples` is the most that one run may train; `search` and `budget.eval_every` are not used.
    """

    batches: Batches = "auto"
    """Global batches, at least 3; auto takes those of `space.batch.global`, or places them around the noise scale."""

    width: Annotated[float, Field(gt=1)] = 1.5
    """The study ends where the high end of the critical batch's interval is at most this many times the low one."""

    precision: Positive = 0.035
    """Standard error of ln(samples to target) that every batch is measured to."""

    least_seeds: Annotated[int, BeforeValidator(whole), Field(ge=2, le=MOST)] = 5
    """Seeds under which the best learning rate of every batch is trained, at least 2."""

    most_seeds: Annotated[int, BeforeValidator(whole), Field(ge=2, le=MOST)] = 12
    """The same at most, where precision or width ask for more."""

    total_samples: Count | None = None
    """Most training samples of all runs together; null is 100 times `budget.samples`."""

    settings: Count = 6
    """Suggestions for the other keys of the space that are tried at every batch beside what the spec writes."""

    eval_every: Share = Duration(value=0.03, unit="share")
    """Distance of evaluations, as a share of the samples seen: the resolution of samples-to-target before it is fitted.
    """

    target_from: Share = Duration(value=0.5, unit="share")
    """Without `objective.target`: the target is what a run at `batch.reference` and `lr.base` reaches after this share
    of `budget.samples`."""

    branch: BranchSection = BranchSection()

    scan: ScanSection = ScanSection()

    scaling: ScalingSection = ScalingSection()
