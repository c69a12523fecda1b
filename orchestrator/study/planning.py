"""What a study trains next, settings of other keys included: the ladder's planner, and a tuning before final runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.study.settings import WRITTEN, Asked, Trained, Tuning
from orchestrator.theory.ladder import LadderConfig, Result
from orchestrator.theory.ladder_planner import Planner, Verdict


@dataclass(frozen=True, kw_only=True)
class StudyPlanner:
    """Plans a study with `count` settings, the written one among them. It holds no state, like `Planner`."""

    config: LadderConfig
    count: int = 1

    def next_jobs(self, known: Sequence[Trained], running: Sequence[Asked], free: int) -> tuple[Asked, ...] | Verdict:
        """Up to `free` further runs; none where the running ones must end first; or why the study is over.

        A batch whose learning rate is found is tuned before its final runs; if a suggestion wins, its results take the
        place of the written setting's, and the search goes on from them.
        """
        tunings = self._tunings(known, running)
        chosen = {batch: tuning.winner for batch, tuning in tunings.items()}
        view = self._view(known, chosen)
        own = [one.run for one in running if one.setting == (chosen[one.run.global_batch] or WRITTEN)]
        others = sum(one.result.samples for one in known) - sum(one.samples for one in view)
        total = max(self.config.budget_samples, math.floor(self.config.total_samples - others))
        planner = Planner(config=dataclasses.replace(self.config, total_samples=total))
        found = planner.next_runs(view, own, free)
        if isinstance(found, Verdict):
            return () if running else found
        wanted = {batch: tuning.wanted() for batch, tuning in tunings.items()}
        jobs = []
        for run in found:
            setting = chosen[run.global_batch]
            if run.purpose == "final" and setting is None:
                job = next(wanted[run.global_batch], None)
            else:
                rival = planner.rival(view, run)
                job = Asked(setting=setting or WRITTEN, run=run, rival=rival, phase=run.purpose)
            jobs += [] if job is None else [job]
        return tuple(jobs)

    def chosen(self, known: Sequence[Trained]) -> dict[int, int]:
        """The setting of each batch, as far as it is known."""
        return {batch: tuning.winner or WRITTEN for batch, tuning in self._tunings(known, ()).items()}

    def view(self, known: Sequence[Trained]) -> list[Result]:
        """The results with each batch's setting: what the ladder is made of."""
        return self._view(known, self.chosen(known))

    def _tunings(self, known: Sequence[Trained], running: Sequence[Asked]) -> dict[int, Tuning]:
        spent = sum(one.result.samples for one in known) + sum(one.run.max_samples for one in running)
        return {
            batch: Tuning(
                self.config,
                batch,
                self.count,
                [one for one in known if one.result.run.global_batch == batch],
                [one for one in running if one.run.global_batch == batch],
                self.config.total_samples - spent,
            )
            for batch in sorted({*self.config.batches, *(one.result.run.global_batch for one in known)})
        }

    def _view(self, known: Sequence[Trained], chosen: Mapping[int, int | None]) -> list[Result]:
        return [one.result for one in known if one.setting == (chosen[one.result.run.global_batch] or WRITTEN)]
