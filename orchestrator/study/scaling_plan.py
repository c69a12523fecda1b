"""What a scaling check trains: the same seeds at the global batch of each worker count, for equal samples. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.resolve import resolve_trial
from orchestrator.study.crew import Wanted
from orchestrator.study.spec_as_study import SpecAsStudy


@dataclass(frozen=True, kw_only=True)
class ScalingPlan(SpecAsStudy):
    """A spec, as `as_scaling` gave it, seen as a scaling check."""

    @property
    def workers(self) -> tuple[int, ...]:
        """Worker counts that are compared, ascending."""
        found = self.spec.study.scaling.workers
        assert found != "auto", "as_scaling writes them out"
        return found

    @property
    def per_worker_batch(self) -> int:
        """Samples that each of them contributes to an update."""
        found = self.spec.study.scaling.per_worker_batch
        assert found is not None, "as_scaling writes it out"
        return found

    def runs(self) -> list[Wanted]:
        """Every run, seed by seed: what a check that is cut knows is known of every arm."""
        return [self._run(workers, seed) for seed in range(self.spec.study.scaling.seeds) for workers in self.workers]

    def arm(self, workers: int) -> list[str]:
        """The names of an arm's runs, in the order of their seeds."""
        return [name_of(workers, seed) for seed in range(self.spec.study.scaling.seeds)]

    def _run(self, workers: int, seed: int) -> Wanted:
        params = {"batch.global": workers * self.per_worker_batch}
        trial = resolve_trial(self.spec, params, seed=self.spec.seed + seed, metric_modes=self.metric_modes)
        return Wanted(name=name_of(workers, seed), spec=trial, phase="scaling")


def name_of(workers: int, seed: int) -> str:
    """What a run is called.

    >>> name_of(8, 0)
    'batch of 8 workers, seed 0'
    """
    return f"batch of {workers} workers, seed {seed}"
