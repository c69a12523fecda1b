"""Batches of a ladder that cannot be trained, such as one that no device has the memory for: the others go on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from orchestrator.study.runs import MOST_FAILURES, given_up
from orchestrator.study.trials import BASELINE, Goal, StudyTrial
from orchestrator.theory.ladder import LadderConfig


def lost_batches(trials: Sequence[StudyTrial], goal: Goal) -> dict[int, str]:
    """Batches of which a run failed again, and no run that began later has a result; why, by batch.

    The baseline run is not among them: nothing can be planned without it.
    """
    runs = [one for one in trials if one.phase != BASELINE]
    places = {one.trial: place for place, one in enumerate(runs)}
    lost: dict[int, str] = {}
    for one in given_up(runs, lambda one: (one.run.key, one.setting)):
        later = [other for other in runs[places[one.trial] :] if other.run.global_batch == one.run.global_batch]
        if all(other.result(goal) is None for other in later):
            lost[one.run.global_batch] = reason_of(one)
    return lost


def reason_of(one: StudyTrial) -> str:
    """Why a run that failed again was given up."""
    run = f"learning rate {one.run.lr:g}, seed {one.run.seed}"
    return f"a run failed {MOST_FAILURES} times (batch {one.run.global_batch}, {run}): {one.outcome['reason']}"


def without(config: LadderConfig, lost: Mapping[int, str], trials: Sequence[StudyTrial]) -> LadderConfig:
    """The study of the other batches, of which there is one at least, with the samples that the lost ones left."""
    if not lost:
        return config
    spent = sum(one.samples for one in trials if one.run.global_batch in lost)
    return dataclasses.replace(
        config,
        batches=tuple(batch for batch in config.batches if batch not in lost),
        total_samples=max(config.budget_samples, math.floor(config.total_samples - spent)),
    )
