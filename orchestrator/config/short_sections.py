"""The sections of a spec that the study methods branch and scan read, below the section of the study."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from orchestrator.config.fields import MOST, Count, Positive, Section, whole

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
