"""What a batch scan trains: a short run at each batch, all with the same number of updates. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from orchestrator.config.resolve import resolve_trial
from orchestrator.config.short_rules import batches_of
from orchestrator.config.trial import TrialSpec
from orchestrator.errors import ConfigError
from orchestrator.study.crew import Wanted
from orchestrator.study.places import places
from orchestrator.study.spec_as_study import SpecAsStudy

FACTORS = (0.25, 0.5, 1, 2, 4, 8)
"""Of the reference batch, where no batches are named."""
GROWTH = 0.06
"""Evaluations grow apart by this share of the samples seen: those of large batches would cost more than training."""


@dataclass(frozen=True, kw_only=True)
class ScanPlan(SpecAsStudy):
    """A spec seen as a batch scan."""

    @property
    def batches(self) -> tuple[int, ...]:
        """Ascending."""
        asked = batches_of(self.spec)
        if asked is not None:
            return asked
        reference = self.spec.batch.reference_batch
        possible = set(places(self.spec, self.train_samples)) | {reference}
        return tuple(sorted(possible & {round(factor * reference) for factor in FACTORS}))

    @property
    def equal_samples(self) -> int:
        """Seen at every batch."""
        return min(self.batches) * self.spec.study.scan.updates

    def check(self, file: str) -> None:
        """Refuse what is known to give no answer.

        Raises:
            ConfigError: names file, key, value, rule and remedy.
        """
        if len(self.batches) < 2:
            reference = self.spec.batch.reference_batch
            rule = f"only {len(self.batches)} of the batches around batch.reference can be split over the workers"
            remedy = "list study.batches"
            raise ConfigError(rule, file=file, key="batch.reference", value=reference, remedy=remedy)

    def runs(self) -> list[Wanted]:
        """Every run, small batches first."""
        return [self._run(batch, seed) for batch in self.batches for seed in range(self.spec.study.scan.seeds)]

    def _run(self, batch: int, seed: int) -> Wanted:
        section = self.spec.study.scan
        # A warmup that is a share of the budget is one of the scan's own length.
        budget = self.spec.budget.model_copy(update={"samples": section.updates * batch})
        spec = self.spec.model_copy(update={"budget": budget})
        trial: TrialSpec = resolve_trial(spec, {"batch.global": batch}, metric_modes=self.metric_modes)
        trial = dataclasses.replace(
            trial,
            seed=self.spec.seed + seed,
            eval_every_samples=max(1, self.equal_samples // section.evaluations),
            eval_growth=GROWTH,
        )
        return Wanted(name=name_of(batch, seed), spec=trial, phase="scan")


def name_of(batch: int, seed: int) -> str:
    """What a run is called.

    >>> name_of(32, 0)
    'scan at batch 32, seed 0'
    """
    return f"scan at batch {batch}, seed {seed}"
