"""What a study does before it can plan: its baseline run, and the target and the ladder that it is read for.

Pure functions of the spec, of what the task says of itself, and of the baseline runs so far.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.config.resolve import resolve_trial
from orchestrator.config.study_rules import ladder_of, lr_range
from orchestrator.config.study_section import LEAST_BATCHES
from orchestrator.config.trial import Target, TrialSpec
from orchestrator.errors import ConfigError
from orchestrator.study.places import around_noise, places
from orchestrator.study.settings import settings_of
from orchestrator.study.spec_as_study import SpecAsStudy
from orchestrator.study.trials import Goal, Noise, StudyTrial
from orchestrator.theory.ladder import SEARCH_OVERSHOOT, LadderConfig, Run
from orchestrator.theory.local_parabola import fit_around

RUNS_OF_BUDGET = 100
"""Samples of the whole study, in budgets of one run, unless given."""
GENTLER = 4.0
"""A baseline run that diverged is followed by one at a learning rate lower by this."""
LEAST_UPDATES = 8
"""A batch that is placed by the study makes at least so many updates within the budget."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A study that can be planned.

    Attributes:
        config: of the planner.
        goal: what its runs are to reach.
        noise: of the baseline run where it was decided; None without one.
        notes: how target and ladder were arrived at, for people.
    """

    config: LadderConfig
    goal: Goal
    noise: Noise | None
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Protocol(SpecAsStudy):
    """A spec seen as a study."""

    @property
    def goal(self) -> Goal | None:
        """The target that was given."""
        value = self.spec.objective.target
        return None if value is None else Goal(metric=self.metric, value=value, mode=self.mode)

    @property
    def total_samples(self) -> int:
        """Most samples of all runs."""
        return self.spec.study.total_samples or RUNS_OF_BUDGET * self.spec.budget.samples

    def check(self, file: str) -> None:
        """Refuse a ladder that could not be placed, whatever the noise scale turns out to be.

        Raises:
            ConfigError: names the key and the remedy.
        """
        spec = self.spec
        if ladder_of(spec) is not None:
            return
        possible = self.places()
        if len(possible) < LEAST_BATCHES:
            rule = (
                f"{len(possible)} batches can be trained: multiples of {spec.cluster.workers} workers, up to the "
                f"{self.train_samples} training samples and budget.samples / {LEAST_UPDATES}"
            )
            remedy = "raise budget.samples, or use fewer workers"
            raise ConfigError(rule, file=file, key="study.batches", value="auto", remedy=remedy)
        plan = resolve_trial(spec, {"batch.global": spec.batch.reference_batch}, metric_modes=self.metric_modes).plan
        if plan.world_size * plan.accumulation < 2:
            rule = "one worker without accumulation has one batch size only, which tells no noise scale"
            remedy = "use 2 workers, write batch.accumulation: 2, or list study.batches"
            raise ConfigError(rule, file=file, key="study.batches", value="auto", remedy=remedy)

    def baseline(self, earlier: Sequence[StudyTrial]) -> Run | None:
        """The next baseline run; None if none is needed, the last one did not diverge, or no rate is low enough.

        Args:
            earlier: baseline runs that are over.
        """
        spec, share = self.spec, self.spec.study.target_from.value
        if self.goal is not None and ladder_of(spec) is not None:
            return None
        lr, reference = spec.lr.base, spec.batch.reference_batch
        for one in earlier:
            if not one.diverged(self.metric):
                return None
            lr = float(f"{one.run.lr / GENTLER:.4g}")
        if lr < lr_range(spec).low:
            return None
        most = spec.budget.samples
        if self.goal is None:
            most = min(most, math.ceil(SEARCH_OVERSHOOT * share * most))
        return Run(
            global_batch=reference,
            lr=lr,
            seed=self._config(Goal(metric=self.metric, value=0.0, mode=self.mode), (reference,)).seed_of(
                reference, "search", 0
            ),
            max_samples=most,
            purpose="search",
            overshoot=SEARCH_OVERSHOOT,
        )

    def plan(self, baseline: Sequence[StudyTrial]) -> Plan | str:
        """The study, once its baseline runs have ended; or why none can be made."""
        notes: list[str] = []
        last = baseline[-1] if baseline else None
        if last is not None and last.diverged(self.metric):
            low = lr_range(self.spec).low
            return f"the baseline run diverged at every learning rate from {self.spec.lr.base:g} down to {low:g}"
        goal = self.goal
        if goal is None:
            assert last is not None
            goal, note = self._chosen(last)
            notes.append(note)
        noise = None
        if last is not None:
            result = last.result(goal)
            noise = last.noise(math.inf if result is None else result.samples)
        ladder = ladder_of(self.spec)
        if ladder is None:
            ladder, note = self._placed(noise)
            notes.append(note)
        hint = None if noise is None else noise.value or None
        return Plan(config=self._config(goal, ladder, hint), goal=goal, noise=noise, notes=tuple(notes))

    @functools.cached_property
    def settings(self) -> tuple[Mapping[str, Any], ...]:
        """What may be laid over the spec at each batch; the first is nothing."""
        return settings_of(self.spec)

    def trial_spec(self, run: Run, goal: Goal | None, setting: int = 0) -> TrialSpec:
        """The trial that a run means; without a goal, while that is not known."""
        params = {"batch.global": run.global_batch, "lr.base": run.lr, **self.settings[setting]}
        trial = resolve_trial(self.spec, params, seed=run.seed, metric_modes=self.metric_modes)
        return dataclasses.replace(
            trial,
            budget_samples=max(run.max_samples, trial.lr.warmup_samples),
            eval_growth=self.spec.study.eval_every.value,
            target=None if goal is None else Target(metric=goal.metric, value=goal.value, mode=goal.mode),
            stop_at_target=False,
        )

    def places(self) -> list[int]:
        """Every batch at which a study may place a rung."""
        return places(self.spec, min(self.train_samples, self.spec.budget.samples // LEAST_UPDATES))

    def _config(self, goal: Goal, ladder: Sequence[int], noise: float | None = None) -> LadderConfig:
        spec, study = self.spec, self.spec.study
        rates = lr_range(spec)
        return LadderConfig(
            batches=tuple(ladder),
            start_lr=spec.lr.base,
            reference_batch=spec.batch.reference_batch,
            lr_low=rates.low,
            lr_high=rates.high,
            target=goal.value,
            mode=goal.mode,
            budget_samples=spec.budget.samples,
            total_samples=self.total_samples,
            final_least=study.least_seeds,
            final_most=study.most_seeds,
            precision=study.precision,
            width=study.width,
            noise_scale=noise,
            seed=spec.seed,
        )

    def _chosen(self, last: StudyTrial) -> tuple[Goal, str]:
        """The target from a baseline run: its smoothed metric after the stated share of the budget."""
        at = self.spec.study.target_from.value * self.spec.budget.samples
        curve = last.curve(self.metric)
        local = fit_around([curve], at, math.log(SEARCH_OVERSHOOT), float(curve.samples[-1]))
        value = float(curve.values[-1]) if local is None else float(local.coefficients[0, 0])
        value = float(f"{value:.4g}")
        note = (
            f"target {self.metric} = {value:g}: what a run at batch {last.run.global_batch} and learning rate "
            f"{last.run.lr:g} reached after {at:,.0f} samples"
        )
        return Goal(metric=self.metric, value=value, mode=self.mode), note

    def _placed(self, noise: Noise | None) -> tuple[tuple[int, ...], str]:
        """A ladder around the noise scale, of batches that can be trained."""
        known = noise is not None and noise.value > 0
        centre = noise.value if noise is not None and known else float(self.spec.batch.reference_batch)
        ladder = around_noise(centre, self.places())
        text = ", ".join(map(str, ladder))
        if known:
            note = f"batches {text}: around the noise scale of the baseline run, {centre:.3g} samples"
        else:
            note = f"batches {text}: around batch.reference, as the baseline run did not determine its noise scale"
        return ladder, note
