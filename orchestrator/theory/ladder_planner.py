"""What a critical-batch study trains next: a pure function of its configuration and the results so far."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.theory.critical_batch import MIN_BATCHES, CriticalBatch
from orchestrator.theory.ladder import SEARCH_OVERSHOOT, LadderConfig, Purpose, Result, Run
from orchestrator.theory.ladder_batch import FAILURES, LEAST_GAIN, NEAR, SEARCH_MOST, batch_runs
from orchestrator.theory.ladder_views import NOT_REACHED, Ladder, final_lr
from orchestrator.theory.target_crossing import OVERSHOOT

SLACK = 3.0
"""Budgets go so far beyond what another batch needed. Updates do not grow with the batch, nor samples fall with it."""
LOWERED = 0.9
"""The next learning rate, at most, after one whose final runs failed."""
AGAIN = 2.0
"""A further seed at a learning rate may take so many times the best crossing."""
SEARCH_LEAST = 1.2
"""Search runs go to this factor of the best crossing at least, so that a lucky seed sees that of the mean."""
LOCATED_SD = 0.35
"""A batch whose best learning rate is known so well serves as a guess for others."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why the study is over: ``done`` (as tight as asked), ``spent``, ``not reached``, or ``met at start``.

    `reason` says more.
    """

    kind: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Rival:
    """What a search run has to beat: samples to the target, and the standard error of their log for one seed."""

    samples: float = math.inf
    se_log: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans a study. It holds no state: a study that resumes asks again, with the results that it has."""

    config: LadderConfig

    def next_runs(self, results: Sequence[Result], running: Sequence[Run], free: int) -> tuple[Run, ...] | Verdict:
        """Up to `free` further runs; none where the running ones must end first; or why the study is over.

        The order of `results` and `running` does not matter.

        >>> planner = Planner(config=LadderConfig(
        ...     batches=(8, 32, 128), start_lr=0.1, reference_batch=8, lr_low=0.01, lr_high=1.0, target=0.5,
        ...     budget_samples=1000, total_samples=10_000))
        >>> [(run.global_batch, run.lr, run.purpose, run.max_samples) for run in planner.next_runs([], [], 2)]
        [(8, 0.1, 'search', 1000)]
        """
        state = _State(self.config, results, running)
        spent = sum(one.samples for one in results) + sum(state.estimate(run) for run in running)
        out: list[Run] = []
        short = False
        while len(out) < free:
            run = next(state.wanted(), None)
            if run is None:
                break
            if spent + state.estimate(run) > self.config.total_samples:
                short = True
                break
            spent += state.estimate(run)
            out.append(run)
            state = _State(self.config, results, [*running, *out])
        if out or running or free < 1:
            return tuple(out)
        return state.verdict(short)

    def rival(self, results: Sequence[Result], run: Run) -> Rival:
        """What `ladder_stop.hopeless` compares a search run with; nothing beats a final run, which is never raced."""
        view = batch_runs(self.config, run.global_batch, results)
        if run.purpose == "final" or view.best is None:
            return Rival()
        samples = view.best[1].samples or math.inf
        # A further seed counts also where it is unlucky: to stop it would make its learning rate look good.
        again = run.lr in view.crossings
        return Rival(samples=AGAIN * samples if again else samples, se_log=view.sd)


class _State:
    """What is known, and asked for, at one moment."""

    def __init__(self, config: LadderConfig, results: Sequence[Result], running: Sequence[Run]) -> None:
        self.config, self.results, self.running = config, results, sorted(running, key=lambda run: run.key)
        # The ladder opens outwards from the reference batch; of two as near, the smaller is cheaper.
        self.order = sorted(config.batches, key=lambda batch: (abs(math.log(batch / config.reference_batch)), batch))
        self.ladder = Ladder(config, results)
        self.views = self.ladder.views
        self.asked: dict[tuple[int, bool], float | None] = {}

    def wanted(self) -> Iterator[Run]:
        """The next run, in order of urgency."""
        if any(view.met_at_start for view in self.views.values()):
            return
        opened = [batch for batch in self.order if self.views[batch].results or self._running(batch)]
        for batch in opened:
            yield from self._search(batch)
        for batch in self._to_open(opened):
            yield from self._search(batch)
        searching = any(run.purpose == "search" for run in self.running) or bool(self._to_open(opened))
        settled = not searching and all(self._searched(batch) or self._lost(batch) for batch in opened)
        for batch in opened:
            # A batch that is not sure of its learning rate waits for what others tell.
            if settled or self._sure(batch):
                yield from self._finals(batch)
        if settled:
            yield from self._more_finals(opened)

    def verdict(self, short: bool) -> Verdict:
        """Why nothing is wanted any more."""
        if any(view.met_at_start for view in self.views.values()):
            return Verdict(kind="met at start", reason="the target is met at sample 0. Set a harder target")
        if all(view.best is None for view in self.views.values()) and not short:
            ways = sorted(set(self.ladder.why_lost().values()))
            reason = ". ".join(["no run reached the target", *(NOT_REACHED[way] for way in ways)])
            return Verdict(kind="not reached", reason=reason)
        critical = self.ladder.fit()
        if _width(critical) <= self.config.width:
            return Verdict(kind="done", reason=f"the interval spans a factor {_width(critical):.3g}")
        why = f"{self.config.final_most} seeds a batch are spent"
        if self._too_few():
            why = f"fewer than {MIN_BATCHES} batches reached the target, so that further seeds tell nothing"
        if short:
            why = f"total_samples = {self.config.total_samples:,} are spent"
        elif critical.misfit_scale > 1.0:
            why = "the hyperbola misses the batches by more than seeds explain, so that further seeds tell nothing"
        return Verdict(kind="spent", reason=f"{why}. {critical.reason}".strip())

    def estimate(self, run: Run) -> float:
        """Samples that a run will take, roughly: as many as it may where nothing crossed."""
        best = self.views[run.global_batch].best
        return min(float(run.max_samples), run.overshoot * (best[1].samples or 0.0)) if best else run.max_samples

    def _running(self, batch: int, purpose: Purpose | None = None) -> list[Run]:
        return [run for run in self.running if run.global_batch == batch and purpose in (None, run.purpose)]

    def _to_open(self, opened: Sequence[int]) -> list[int]:
        """The next batch, if the best learning rate is known somewhere; none beyond one that is out of reach."""
        left = [batch for batch in self.order if batch not in opened]
        if not opened:
            return left[:1]
        lost = {b: self.views[b].why_lost for b in opened if self._lost(b)}
        # Larger batches need more samples, and smaller ones lower learning rates.
        most = min((b for b, why in lost.items() if why in ("budget", "high")), default=math.inf)
        least = max((b for b, why in lost.items() if why in ("diverged", "low")), default=0)
        left = [batch for batch in left if least < batch < most]
        known = [b for b in opened if self.views[b].best is not None and self.views[b].alone.sd < LOCATED_SD]
        if not known and not all(self._lost(b) or self._searched(b) for b in opened):
            return []
        return left[:1]

    def _lost(self, batch: int) -> bool:
        view = self.views[batch]
        return view.best is None and not self._running(batch) and view.seek(self.ladder.prior(batch)) is None

    def _searched(self, batch: int) -> bool:
        """Whether the search at a batch is over: its learning rate is good enough, or nothing tells more."""
        view = self.views[batch]
        if view.best is None:
            return False
        if final_lr(view) is not None or self._running(batch, "final"):
            return True
        return self._next(batch, ignore_running=True) is None

    def _sure(self, batch: int) -> bool:
        view = self.views[batch]
        begun = final_lr(view) is not None or bool(self._running(batch, "final"))
        return begun or (view.best is not None and self.ladder.valley(batch).best()[1] <= self.config.regret)

    def _next(self, batch: int, *, ignore_running: bool = False) -> float | None:
        """The ln(lr) that the search at a batch, where the target was reached, asks for."""
        key = (batch, ignore_running)
        if key not in self.asked:
            view, valley = self.views[batch], self.ladder.valley(batch)
            running = [] if ignore_running else self._running(batch, "search")
            runs = sum(one.run.purpose == "search" for one in view.results) + len(running)
            log_lr, excess = valley.best()
            found: list[float] = []
            if excess > self.config.regret and runs < SEARCH_MOST:
                found = view.candidates(valley, running, LEAST_GAIN * self.config.regret)
            if not found and runs < SEARCH_MOST and all(abs(math.log(r.lr) - log_lr) >= NEAR for r in running):
                missing = view.unsure(log_lr)
                found = [] if missing is None else [missing]
            self.asked[key] = found[0] if found else None
        return self.asked[key]

    def _search(self, batch: int) -> Iterator[Run]:
        view = self.views[batch]
        if view.best is None:
            if not self._running(batch):
                lr = view.seek(self.ladder.prior(batch))
                if lr is not None:
                    yield self._run(batch, view.exact_lr(math.log(lr)), "search")
            return
        if self._searched(batch):
            return
        found = self._next(batch)
        if found is not None:
            yield self._run(batch, view.exact_lr(found), "search")

    def _finals(self, batch: int) -> Iterator[Run]:
        lr = self._final_lr(batch)
        if lr is not None and self._needs_finals(batch, lr, self._count(batch, lr)):
            yield self._run(batch, lr, "final")

    def _final_lr(self, batch: int) -> float | None:
        """The learning rate for final runs; below those that failed."""
        view = self.views[batch]
        if not self._searched(batch):
            return None
        asked = {one.run.lr for one in view.results if one.run.purpose == "final"}
        asked |= {run.lr for run in self._running(batch, "final")}
        failed = [lr for lr in asked if view.failed(lr)]
        holding = [lr for lr in asked if lr not in failed]
        if holding:
            return min(holding)
        if len(failed) >= FAILURES or min(failed, default=math.inf) <= self.config.lr_low:
            return final_lr(view)
        below = math.log(min(failed) * LOWERED) if failed else math.inf
        return view.exact_lr(self.ladder.valley(batch).best(below)[0])

    def _needs_finals(self, batch: int, lr: float, seeds: int) -> bool:
        if seeds < self.config.final_least:
            return True
        if self._too_few():
            return False
        # What is under way may say that the seeds are enough.
        known = len(self.views[batch].finals(lr)) >= self.config.final_least
        rough = self.views[batch].final_error(lr, seeds) > self.config.precision
        return known and rough and seeds < self.config.final_most

    def _count(self, batch: int, lr: float) -> int:
        return len(self.views[batch].finals(lr)) + sum(run.lr == lr for run in self._running(batch, "final"))

    def _too_few(self) -> bool:
        """Whether there are not batches enough for a fit, so far: seeds beyond the least would tell nothing."""
        left_out = self.ladder.left_out()
        return sum(v.best is not None and b not in left_out for b, v in self.views.items()) < MIN_BATCHES

    def _more_finals(self, opened: Sequence[int]) -> Iterator[Run]:
        """A seed where it narrows the interval most for its samples, until it is as narrow as asked."""
        lrs = {batch: lr for batch in opened if (lr := self._final_lr(batch)) is not None}
        reached = {b: self.views[b].final_crossings[lr] for b, lr in lrs.items() if self.views[b].finals(lr)}
        if len(reached) < len(lrs):
            return
        if any(self._needs_finals(b, lrs[b], len(self.views[b].finals(lrs[b]))) for b in reached):
            return
        if self._too_few():
            return
        critical = self.ladder.fit()
        # Where the hyperbola misses the batches by more than seeds explain, further seeds tell nothing.
        if _width(critical) <= self.config.width or critical.misfit_scale > 1.0:
            return
        left_out = self.ladder.left_out()
        usable = [b for b, one in reached.items() if one.samples is not None and b not in left_out]
        open_ = [b for b in usable if self._count(b, lrs[b]) < self.config.final_most]
        if not open_:
            return
        centre = critical.critical_batch or math.exp(float(np.mean(np.log(usable))))
        seeds = {b: float(self._count(b, lrs[b])) for b in usable}
        before = _log_variance(seeds, centre)

        def worth(batch: int) -> float:
            after = _log_variance({**seeds, batch: seeds[batch] + 1.0}, centre)
            return (before - after) / (reached[batch].samples or math.inf)

        batch = max(open_, key=lambda b: (worth(b), -b))
        yield self._run(batch, lrs[batch], "final")

    def _run(self, batch: int, lr: float, purpose: Purpose) -> Run:
        """A run with the first seed that this learning rate has not seen; a run that was lost is asked for again."""
        runs = [one.run for one in self.views[batch].results] + self._running(batch)
        seen = {run.seed for run in runs if run.lr == lr and run.purpose == purpose}
        seeds = (self.config.seed_of(batch, purpose, number) for number in itertools.count())
        view = self.views[batch]
        best = view.best
        overshoot = OVERSHOOT if purpose == "final" else SEARCH_OVERSHOOT
        least = 0
        if best is not None:
            # A seed luckier than by one standard deviation still sees the mean's crossing from both sides.
            factor = overshoot * math.exp(min(view.sd_at(lr), 0.3)) if purpose == "final" else SEARCH_LEAST
            least = math.ceil(factor * (best[1].samples or 0.0))
        budget = self._budget(batch)
        return Run(
            global_batch=batch,
            lr=lr,
            seed=next(seed for seed in seeds if seed not in seen),
            max_samples=budget,
            purpose=purpose,
            overshoot=overshoot,
            least_samples=min(least, budget),
        )

    def _budget(self, batch: int) -> int:
        bounds = [float(self.config.budget_samples)]
        for other, view in self.views.items():
            if view.best is not None:
                bounds.append(SLACK * (view.best[1].samples or 0.0) * max(1.0, batch / other))
        return math.ceil(min(bounds))


def _width(critical: CriticalBatch) -> float:
    if critical.critical_batch is None or critical.low is None or critical.high is None:
        return math.inf
    return critical.high / critical.low


def _log_variance(seeds: dict[int, float], critical_batch: float) -> float:
    """Variance of ln(critical batch) in units of a seed's, by linear least squares around a guess of it."""
    share = np.array([batch / (batch + critical_batch) for batch in seeds])
    weight = np.array(list(seeds.values()))
    centred = share - np.average(share, weights=weight)
    return 1.0 / max(float(np.sum(weight * centred**2)), 1e-12)
