"""The other keys of a study's space, tuned at each batch: which settings are tried there, and which one wins.

Every batch tries the same settings: the one that the spec writes, and some suggestions. Each gets a search of its
learning rate at that batch, raced against the best that is known there, so that it is judged at a rate that suits it. A
suggestion replaces the written setting only where it is clearly better; final runs under fresh seeds then tell what it
is worth, so that a lucky winner gains nothing. All of it is a pure function of the results.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from orchestrator.config.spec import SweepSpec
from orchestrator.config.study_rules import other_keys
from orchestrator.theory.ladder import LadderConfig, Result, Run
from orchestrator.theory.ladder_batch import BatchRuns, batch_runs
from orchestrator.theory.ladder_planner import AGAIN, Planner, Rival, Verdict

WRITTEN = 0
"""The setting that stands in the spec."""
MOST_RUNS = 8
"""Of one suggestion at a batch, before it may be compared again."""
PATIENCE = 3
"""Runs after which a suggestion that did not reach the target in time, or is far behind, is given up."""
BEHIND = 0.15
"""Far behind, in ln(samples)."""
LEAST_GAIN, CLEAR = 0.05, 2.0
"""A winner needs fewer samples by so much, in ln(samples), and by so many standard errors."""
DUEL_SEEDS = 6
"""The best suggestion and the written setting are trained under up to so many seeds where they lie close."""


def settings_of(spec: SweepSpec) -> tuple[Mapping[str, Any], ...]:
    """The settings by number: what is laid over the spec, nothing for the written one. A function of the spec alone."""
    space = {key: spec.space[key] for key in other_keys(spec)}
    found: list[Mapping[str, Any]] = [{}]
    if not space:
        return tuple(found)
    import optuna

    from orchestrator.search.samplers import make_sampler
    from orchestrator.search.space import decode, to_distribution

    distributions = {key: to_distribution(parameter) for key, parameter in space.items()}
    for number in range(spec.study.settings):
        sampler = make_sampler("random", seed=spec.seed, number=number, startup_trials=0, space=space)
        asked = optuna.create_study(sampler=sampler).ask(distributions)
        values = decode(space, asked.params)
        if values not in found:
            found.append(values)
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A result, the setting that it was trained with, and what for."""

    setting: int
    result: Result
    phase: str


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A run to train or under way, its setting, and what it has to beat."""

    setting: int
    run: Run
    rival: Rival
    phase: str


def _searched(one: Trained, setting: int) -> bool:
    return one.setting == setting and one.result.run.purpose == "search"


@dataclass(frozen=True)
class Tuning:
    """The settings at one batch.

    Attributes:
        config: of the study.
        global_batch: B.
        count: settings, with the written one.
        known: results at this batch.
        running: what is under way there.
        left_samples: that the study may still train.
    """

    config: LadderConfig
    global_batch: int
    count: int
    known: Sequence[Trained]
    running: Sequence[Asked]
    left_samples: float

    @cached_property
    def views(self) -> dict[int, BatchRuns]:
        """The search runs of each setting."""
        return {
            n: batch_runs(self.config, self.global_batch, [one.result for one in self.known if _searched(one, n)])
            for n in range(self.count)
        }

    @cached_property
    def winner(self) -> int | None:
        """The setting for this batch; None while it is open."""
        if self.count == 1:
            return WRITTEN
        # What came of a decision stands: its own runs must not reopen it.
        begun: list[Trained | Asked] = [*self.known, *self.running]
        for one in begun:
            if one.phase == "final" or (one.phase == "search" and one.setting != WRITTEN):
                return one.setting
        if next(self.wanted(), None) is not None or any(one.setting != WRITTEN for one in self.running):
            return None
        best, gain, error = self._leader()
        return best if gain > max(LEAST_GAIN, CLEAR * error) else WRITTEN

    def wanted(self) -> Iterator[Asked]:
        """Further runs, in order of urgency: each suggestion's own search, then seeds where two lie close."""
        settled = True
        for n in range(1, self.count):
            busy = any(one.setting == n for one in self.running)
            run = None if busy else self._next(n)
            if run is not None:
                yield self._asked(n, run)
            settled = settled and not busy and run is None
        if settled:
            yield from self._duel()

    def _next(self, n: int) -> Run | None:
        view, best = self.views[n], self._best_samples()
        if len(view.results) >= MOST_RUNS:
            return None
        if len(view.results) >= PATIENCE:
            mine = view.best[1].samples if view.best is not None else None
            if mine is None or math.log(mine / best) > BEHIND:
                return None
        written = self.views[WRITTEN].best
        start = self.config.start_lr if written is None else written[0]
        own = dataclasses.replace(
            self.config,
            batches=(self.global_batch,),
            start_lr=start,
            reference_batch=self.global_batch,
            total_samples=max(self.config.budget_samples, math.floor(self.left_samples)),
            noise_scale=None,
        )
        found = Planner(config=own).next_runs(list(view.results), [], 1)
        if isinstance(found, Verdict) or not found or found[0].purpose == "final":
            return None
        return found[0] if found[0].max_samples <= self.left_samples else None

    def _duel(self) -> Iterator[Asked]:
        best, gain, error = self._leader()
        if best == WRITTEN or gain <= 0.0 or gain > max(LEAST_GAIN, CLEAR * error):
            return
        for n in (best, WRITTEN):
            found = self.views[n].best
            if found is None:
                continue
            lr, here = found[0], [one.run for one in self.views[n].results if one.run.lr == found[0]]
            busy = [one.run for one in self.running if one.setting == n and one.run.lr == lr]
            if len(here) + len(busy) >= DUEL_SEEDS or here[0].max_samples > self.left_samples:
                continue
            seen = {run.seed for run in (*here, *busy)}
            seeds = (self.config.seed_of(self.global_batch, "search", number) for number in itertools.count())
            run = dataclasses.replace(here[0], seed=next(seed for seed in seeds if seed not in seen))
            yield self._asked(n, run)

    def _leader(self) -> tuple[int, float, float]:
        """The setting of the fewest samples, its gain over the written one in ln(samples), and that gain's error."""
        reached = {n: view.best[1] for n, view in self.views.items() if view.best is not None}
        if WRITTEN not in reached:
            return WRITTEN, 0.0, 0.0
        best = min(reached, key=lambda n: (reached[n].samples or math.inf, n))
        gain = math.log((reached[WRITTEN].samples or 0.0) / (reached[best].samples or 1.0))
        errors = [self.views[n].sd / math.sqrt(reached[n].seeds) for n in (best, WRITTEN)]
        return best, gain, math.hypot(*errors)

    def _best_samples(self) -> float:
        found = [view.best[1].samples for view in self.views.values() if view.best is not None]
        return min((samples for samples in found if samples is not None), default=math.inf)

    def _asked(self, n: int, run: Run) -> Asked:
        """A run must beat the best of all settings, until its own setting has reached the target."""
        view = self.views[n]
        own = Planner(config=self.config).rival(list(view.results), run)
        again = run.lr in view.crossings
        rival = own if again else Rival(samples=self._best_samples(), se_log=self.views[WRITTEN].sd)
        if again and math.isinf(own.samples):
            rival = Rival(samples=AGAIN * self._best_samples(), se_log=view.sd)
        return Asked(setting=n, run=run, rival=rival, phase="settings")
