"""What the branch method trains: one run that leaves checkpoints, and branches off each of them. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.config.resolve import resolve_trial
from orchestrator.config.short_rules import batches_of
from orchestrator.config.trial import Start, TrialSpec
from orchestrator.errors import ConfigError
from orchestrator.study.crew import Wanted
from orchestrator.study.places import around_noise, places
from orchestrator.study.spec_as_study import SpecAsStudy
from orchestrator.theory.critical_batch import Estimate

PARENT = "the run that is branched from"
LEAST_UPDATES = 9
"""Of a branch: its rate is read within a window of evaluations around two thirds of its length."""


@dataclass(frozen=True, kw_only=True)
class BranchPlan(SpecAsStudy):
    """A spec seen as a study by branches."""

    @property
    def marks(self) -> tuple[int, ...]:
        """Samples seen at the checkpoints, ascending: multiples of the reference batch."""
        budget, reference = self.spec.budget.samples, self.spec.batch.reference_batch
        halves = [budget >> k for k in range(self.spec.study.branch.checkpoints)]
        return tuple(sorted({reference * (half // reference) for half in halves} - {0}))

    @property
    def length_samples(self) -> int:
        """Of every branch, at least; it ends with the update that gets there."""
        return self.spec.study.branch.samples or max(1, self.spec.budget.samples // 4)

    def check(self, file: str) -> None:
        """Refuse what is known to give no answer.

        Raises:
            ConfigError: names file, key, value, rule and remedy.
        """
        if self.metric_modes[self.metric.removeprefix("val/")] != "min":
            rule = "the rate of learning is that of a loss, of which less is better"
            raise ConfigError(rule, file=file, key="objective.metric", value=self.metric, remedy="write val/loss")
        asked, marks = self.spec.study.branch.checkpoints, self.marks
        warmup = self.parent().lr.warmup_samples
        if len(marks) < asked or marks[0] < warmup:
            rule = f"the first checkpoint comes after {marks[0] if marks else 0} samples"
            rule += f", within the warmup of {warmup}" if marks and marks[0] < warmup else ": less than one update"
            remedy = "write fewer, or a larger budget.samples"
            raise ConfigError(rule, file=file, key="study.branch.checkpoints", value=asked, remedy=remedy)
        batches = batches_of(self.spec)
        largest = max(batches) if batches else self.spec.batch.reference_batch
        if largest * LEAST_UPDATES > self.length_samples:
            rule = f"a branch makes at least {LEAST_UPDATES} updates at every batch, and the largest is {largest}"
            remedy = f"write {largest * LEAST_UPDATES} or more, or leave large batches out"
            raise ConfigError(rule, file=file, key="study.branch.samples", value=self.length_samples, remedy=remedy)

    def parent(self) -> TrialSpec:
        """The run that leaves the checkpoints."""
        trial = self._trial(self.spec.batch.reference_batch)
        return dataclasses.replace(trial, keep_at=self.marks, budget_samples=max(self.marks, default=1))

    def batches(self, noise: Estimate) -> tuple[tuple[int, ...], str]:
        """The batches of the branches, and how they were chosen, for people."""
        asked = batches_of(self.spec)
        if asked is not None:
            return asked, ""
        most = self.length_samples // LEAST_UPDATES
        possible = places(self.spec, min(self.train_samples, most))
        centre = noise.value or float(self.spec.batch.reference_batch)
        found = around_noise(centre, possible)
        what = "the noise scale at the last checkpoint" if noise.value else "batch.reference: no noise scale is known"
        return found, f"batches {', '.join(map(str, found))}: around {what}, {centre:.3g} samples"

    def branches(self, batches: Sequence[int], folder: str) -> list[Wanted]:
        """Every branch, from the first checkpoint on.

        Args:
            batches: samples.
            folder: the checkpoints of the parent.
        """
        parent = self.parent()
        starts = [Start(folder=folder, samples_seen=mark, trajectory=parent.trajectory) for mark in self.marks]
        return [
            self._branch(parent, start, batch, seed)
            for start in starts
            for batch in batches
            for seed in range(self.spec.study.branch.seeds)
        ]

    def _branch(self, parent: TrialSpec, start: Start, batch: int, seed: int) -> Wanted:
        trial = self._trial(batch)
        length = self.length_samples
        branch = dataclasses.replace(
            trial,
            start=start,
            seed=parent.seed + 1 + seed,
            budget_samples=start.samples_seen + length,
            eval_every_samples=max(1, length // self.spec.study.branch.evaluations),
            # In updates it would be another one at every batch, and it is over.
            lr=dataclasses.replace(trial.lr, warmup_samples=parent.lr.warmup_samples),
        )
        return Wanted(name=name_of(start.samples_seen, batch, seed), spec=branch, phase="branch")

    def _trial(self, batch: int) -> TrialSpec:
        return resolve_trial(self.spec, {"batch.global": batch}, metric_modes=self.metric_modes)


def name_of(mark: int, batch: int, seed: int) -> str:
    """What a branch is called.

    >>> name_of(4096, 32, 0)
    'branch after 4096 samples at batch 32, seed 0'
    """
    return f"branch after {mark} samples at batch {batch}, seed {seed}"
