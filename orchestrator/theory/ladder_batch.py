"""One batch of a study: what its runs so far tell, and which learning rate to try next."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from orchestrator.theory.fieller import Array
from orchestrator.theory.ladder import SEARCH_OVERSHOOT, LadderConfig, Mode, Result, Run
from orchestrator.theory.ladder_rate import Guess, KnownLr
from orchestrator.theory.ladder_stop import trend
from orchestrator.theory.ladder_valley import CANDIDATE_STEP, FAR_SD, MODEL_SD, SHARED, Tried, Valley, locate
from orchestrator.theory.target_crossing import OVERSHOOT, Crossing, expected_crossing

Bound = Literal["budget", "diverged", "low", "high"]
"""What a batch ran into: its samples, or an end of the learning rates that may be tried."""
SD, SD_FREEDOM = 0.1, 2.0
"""What is supposed of ln(samples) between seeds before any were seen, and how many degrees of freedom that is worth."""
SD_GROWTH = 1.5
"""A seed's noise grows with the learning rate to this power; simulated on the noisy quadratic: 1.5 to 2.8."""
START_SD = 1.2
"""Of ln(start lr / best lr): a factor of ten is two of these."""
REACH = 1.5
"""Floors are sought this far, in ln(lr), beyond the tried learning rates."""
SEEK_MOST = 10
CLOSE = 1.2
"""Learning rates that are closer than this factor are not told apart where none reached the target."""
SEARCH_MOST = 20
LEAST_GAIN = 0.1
"""A search also ends where its best next run is expected to lessen the excess by less than this share of the aim."""
SAME = 0.02
EARLY = 3.0
"""Single curves cross early by so many times the variance of ln(samples); simulated on the noisy quadratic: 0 to 4."""
NEAR = 0.2
FAILURES = 3
"""Learning rates that may fail in the final runs of a batch."""
LOWER, WORSE = 0.97, 0.04
"""A learning rate lower by so much shows a chosen one to be too high, where it takes fewer samples by so much."""
PRECISION = 0.06
"""Standard error of ln(samples) at the learning rate that is chosen, or near it."""


@dataclass(frozen=True, kw_only=True)
class BatchRuns:
    """What was trained at one batch, in an order that does not depend on when runs ended.

    Attributes:
        config: of the study.
        global_batch: B.
        results: of this batch, by key.
    """

    config: LadderConfig
    global_batch: int
    results: tuple[Result, ...]

    @cached_property
    def crossings(self) -> dict[float, Crossing]:
        """The expected curve's crossing at each learning rate of the search, all seeds together."""
        return {
            lr: _crossing(tuple(runs), self.config.target, self.config.mode, SEARCH_OVERSHOOT)
            for lr, runs in self._by_lr("search").items()
        }

    @cached_property
    def best(self) -> tuple[float, Crossing] | None:
        """The learning rate that crossed soonest, and its crossing."""
        crossed = [(lr, one) for lr, one in self.crossings.items() if one.samples is not None]
        return min(crossed, key=lambda pair: (pair[1].samples or 0.0, pair[0]), default=None)

    @cached_property
    def met_at_start(self) -> bool:
        """Whether the target was met before anything was learned."""
        return any(one.verdict == "met at start" for one in self.crossings.values())

    @cached_property
    def sd(self) -> float:
        """Of ln(samples) of one seed at the best learning rate: pooled from all."""
        if self.best is None:
            return SD
        squares, freedom = SD_FREEDOM * SD**2, SD_FREEDOM
        for lr, one in self.crossings.items():
            # Noise far from the best rate tells little about that at it.
            near = abs(math.log(lr / self.best[0])) <= math.log(2.0)
            if near and one.se_log is not None and one.dof is not None:
                scaled = one.seeds * one.se_log**2 * (self.best[0] / lr) ** (2.0 * SD_GROWTH)
                squares, freedom = squares + one.dof * scaled, freedom + one.dof
        return math.sqrt(squares / freedom)

    def sd_at(self, lr: float) -> float:
        """Of ln(samples) of one seed at a learning rate."""
        if self.best is None:
            return self.sd
        return self.sd * math.pow(min(max(lr / self.best[0], 0.5), 2.0), SD_GROWTH)

    @cached_property
    def tried(self) -> tuple[Tried, ...]:
        """The learning rates of the search as `ladder_valley.locate` takes them."""
        out = []
        for lr, one in self.crossings.items():
            runs = self._by_lr("search")[lr]
            diverged = any(result.ended == "diverged" for result in runs)
            out.append(
                Tried(
                    log_lr=math.log(lr),
                    log_samples=math.log(one.samples) if one.samples and not diverged else None,
                    seeds=len(runs),
                    sd=self.sd_at(lr),
                    at_least=max(self._at_least(result) for result in runs),
                    diverged=diverged,
                )
            )
        return tuple(out)

    @cached_property
    def alone(self) -> Valley:
        """The valley by the runs of this batch only."""
        return self.valley(Guess(log_lr=math.log(self.config.start_lr), sd=10.0))

    @property
    def known(self) -> KnownLr | None:
        """The best learning rate by the runs of this batch only."""
        if self.best is None:
            return None
        return KnownLr(global_batch=self.global_batch, log_lr=self.alone.mean, se_log=self.alone.sd)

    def valley(self, prior: Guess, shapes: Array | None = None) -> Valley:
        """The valley by these runs and what other batches tell."""
        lrs = [one.log_lr for one in self.tried] or [prior.log_lr]
        low, high = math.log(self.config.lr_low), math.log(self.config.lr_high)
        # The floor may lie where no run may go: a grid that ends with the range would call its end the best.
        return locate(self.tried, prior, (min(lrs) - REACH, max(lrs) + REACH), shapes, (low, high))

    def seek(self, prior: Guess) -> float | None:
        """The next learning rate where none reached the target yet; None where what is left lies close to a failed one.

        It is sought around the one that came closest to the target. If that is the largest of all it asks for more,
        unless its curve came to rest above the target or diverged; if it is the smallest, for less.
        """
        lrs = self._by_lr("search")
        low, high = self.config.lr_low, self.config.lr_high
        if not lrs:
            return min(max(math.exp(prior.log_lr), low), high)
        if len(lrs) >= SEEK_MOST:
            return None
        # The first strides are what the guess may be off, later ones are long.
        stride = math.exp(min(max(1.5 * prior.sd, 0.4), 1.4)) if len(lrs) <= 3 else 4.0
        order, levels = sorted(lrs), self._levels()
        at = min(range(len(order)), key=lambda i: (levels[order[i]], order[i]))
        here, rests = order[at], any(self._too_high(one) for one in lrs[order[at]])
        below = order[at - 1] if at > 0 else None
        above = order[at + 1] if at + 1 < len(order) else None
        if above is None and not rests:
            return min(here * stride, high) if here < high else None
        if below is None and (rests or (above is not None and above / here < CLOSE**2)):
            return max(here / stride, low) if here > low else None
        gaps = [(a, b) for a, b in ((below, here), (here, above)) if a is not None and b is not None and b / a > CLOSE]
        if not gaps:
            return None
        a, b = max(gaps, key=lambda gap: gap[1] / gap[0])
        return math.sqrt(a * b)

    @cached_property
    def why_lost(self) -> Bound:
        """Why none reached the target: of those that were tried the one that came closest tells."""
        lrs, levels = self._by_lr("search"), self._levels()
        if all(one.ended == "diverged" for runs in lrs.values() for one in runs):
            return "diverged"
        closest = min(lrs, key=lambda lr: (levels[lr], lr))
        rests = any(self._too_high(one) for one in lrs[closest])
        if closest <= self.config.lr_low and rests:
            return "low"
        return "high" if closest >= self.config.lr_high and not rests else "budget"

    def candidates(self, valley: Valley, running: Collection[Run], least: float) -> list[float]:
        """ln(lr) by what a run there is expected to tell for its samples, best first.

        Those that tell less than `least` are left out, and so are the neighbours of running ones.
        """
        slim = valley.thinned()
        mean, sd = slim.mean, slim.sd
        low, high = math.log(self.config.lr_low), math.log(self.config.lr_high)
        tried = {one.log_lr: one.seeds if one.log_samples is not None else math.inf for one in self.tried}
        busy = [math.log(run.lr) for run in running]
        reach = min(max(2.5 * sd, 0.3), REACH)
        fresh = np.arange(max(low, mean - reach - 0.3), min(high, mean + reach) + 1e-9, CANDIDATE_STEP)
        spots = [float(u) for u in fresh if all(abs(u - x) > CANDIDATE_STEP / 2 for x in tried)]
        spots += [
            x
            for x, seeds in tried.items()
            if seeds < self.config.search_most and mean - reach - 0.3 <= x <= mean + reach
        ]
        spots = [u for u in spots if all(abs(u - x) >= CANDIDATE_STEP for x in busy)]
        places = np.array(spots)
        heights = slim.weight @ slim.height(places)
        sds = [
            math.hypot(math.sqrt(1.0 - SHARED) * self.sd_at(math.exp(u)), MODEL_SD, FAR_SD * height)
            for u, height in zip(spots, heights, strict=True)
        ]
        gains = slim.gains(places, np.array(sds))
        worth = [gain / math.exp(min(height, 0.3)) for gain, height in zip(gains, heights, strict=True)]
        order = sorted(range(len(spots)), key=lambda i: (-worth[i], spots[i]))
        return [spots[i] for i in order if gains[i] >= least]

    def unsure(self, log_lr: float) -> float | None:
        """The ln(lr) of a run that is missing for a learning rate to be chosen; None if seeds enough agree on it.

        The luckiest of single seeds is often at a learning rate that is too high.
        """
        near = [one for one in self.tried if one.log_samples is not None and abs(one.log_lr - log_lr) <= NEAR]
        if not near:
            return log_lr if self.seeds_at(log_lr) < self.config.search_most else None
        one = min(near, key=lambda one: (abs(one.log_lr - log_lr), one.log_lr))
        sd = self.sd_at(math.exp(one.log_lr))
        if sd / math.sqrt(one.seeds) <= PRECISION or one.seeds >= self.config.search_most:
            return None
        return one.log_lr

    def seeds_at(self, log_lr: float) -> int:
        """Search runs at a learning rate."""
        return len(self._by_lr("search").get(self.exact_lr(log_lr), ()))

    def exact_lr(self, log_lr: float) -> float:
        """The learning rate that was tried there, or four digits of it."""
        same = [lr for lr in self._by_lr("search") if abs(math.log(lr) - log_lr) < SAME]
        return same[0] if same else min(max(float(f"{math.exp(log_lr):.4g}"), self.config.lr_low), self.config.lr_high)

    def finals(self, lr: float) -> tuple[Result, ...]:
        """Final runs at a learning rate."""
        return tuple(self._by_lr("final").get(lr, ()))

    @cached_property
    def final_crossings(self) -> dict[float, Crossing]:
        """Of the expected curve of the final runs at each learning rate."""
        return {
            lr: _crossing(tuple(runs), self.config.target, self.config.mode, OVERSHOOT)
            for lr, runs in self._by_lr("final").items()
        }

    def final_error(self, lr: float, seeds: int) -> float:
        """Standard error of ln(samples) that so many final seeds leave; few of them know their scatter badly."""
        one = self.final_crossings.get(lr)
        squares, freedom = 2.0 * SD_FREEDOM * self.sd_at(lr) ** 2, 2.0 * SD_FREEDOM
        if one is not None and one.se_log is not None and one.dof is not None and one.seeds > 1:
            squares, freedom = squares + one.dof * one.seeds * one.se_log**2, freedom + one.dof
        return math.sqrt(squares / freedom / seeds)

    def failed(self, lr: float) -> bool:
        """Whether final runs say that a learning rate is too high: they fail, or a lower one did better before."""
        runs = self.finals(lr)
        if any(one.ended == "diverged" for one in runs):
            return True
        if len(runs) < self.config.final_least:
            return False
        found = self.final_crossings[lr]
        if found.samples is None:
            return True
        lower = [one for one in self.tried if one.log_samples is not None and math.exp(one.log_lr) < LOWER * lr]
        error = self.final_error(lr, len(runs))
        return any(
            math.log(found.samples) - (one.log_samples or 0.0)
            > WORSE + 2.0 * math.hypot(error, one.sd / math.sqrt(one.seeds))
            for one in lower
        )

    def _by_lr(self, purpose: str) -> dict[float, list[Result]]:
        out: dict[float, list[Result]] = {}
        for one in self.results:
            if one.run.purpose == purpose:
                out.setdefault(one.run.lr, []).append(one)
        return out

    def _levels(self) -> dict[float, float]:
        """How far above the target the curves of each learning rate were after the samples that all have seen."""
        lrs = self._by_lr("search")
        sign = 1.0 if self.config.mode == "min" else -1.0
        whole = [one for runs in lrs.values() for one in runs if one.ended != "diverged"]
        ended = min((one.samples for one in whole), default=0.0)
        out = dict.fromkeys(lrs, math.inf)
        for one in whole:
            late = (one.curve.samples >= 0.8 * ended) & (one.curve.samples <= ended)
            level = sign * (float(np.mean(one.curve.values[late])) - self.config.target) if np.any(late) else math.inf
            out[one.run.lr] = min(out[one.run.lr], level)
        return out

    def _too_high(self, result: Result) -> bool:
        if result.ended == "diverged":
            return True
        found = trend(result.curve, self.config.target, self.config.mode)
        return found is not None and found.flat

    def _at_least(self, result: Result) -> float:
        """ln(samples) that a run without a crossing needs at least; curves are taken to flatten."""
        found = trend(result.curve, self.config.target, self.config.mode) if result.ended != "diverged" else None
        if found is None or result.ended == "overshot":
            return math.log(result.samples) if result.samples > 0 else -math.inf
        return math.log(max(found.soonest, result.samples))


def batch_runs(config: LadderConfig, global_batch: int, results: Sequence[Result]) -> BatchRuns:
    """The runs of one batch among all results, in canonical order.

    >>> config = LadderConfig(batches=(8,), start_lr=0.1, reference_batch=8, lr_low=0.01, lr_high=1.0, target=0.5,
    ...                       budget_samples=1000, total_samples=10_000)
    >>> from orchestrator.theory.local_parabola import Curve
    >>> t = np.arange(0.0, 151.0, 5.0)
    >>> run = Run(global_batch=8, lr=0.1, seed=config.seed_of(8, "search", 0), max_samples=1000, purpose="search")
    >>> found = batch_runs(config, 8, [Result(run=run, curve=Curve(samples=t, values=np.exp(-t / 144.27)),
    ...                                       ended="overshot")])
    >>> found.best[0], round(found.best[1].samples)
    (0.1, 100)
    """
    own = sorted((one for one in results if one.run.global_batch == global_batch), key=lambda one: one.run.key)
    return _batch_runs(config, global_batch, tuple(own))


@lru_cache(maxsize=128)
def _batch_runs(config: LadderConfig, global_batch: int, results: tuple[Result, ...]) -> BatchRuns:
    """A planner asks for the same batch with the same results again and again; fits are costly."""
    return BatchRuns(config=config, global_batch=global_batch, results=results)


@lru_cache(maxsize=1024)
def _crossing(runs: tuple[Result, ...], target: float, mode: Mode, overshoot: float) -> Crossing:
    """Of the expected curve; of the seeds one by one where the luckiest was stopped before the mean crosses."""
    together = expected_crossing([one.curve for one in runs], target, mode, overshoot=overshoot)
    if together.verdict != "ended early" or len(runs) == 1:
        return together
    alone = [_crossing((one,), target, mode, overshoot) for one in runs]
    logs = np.array([math.log(one.samples) for one in alone if one.samples])
    if len(logs) < len(runs):
        return together
    spread = float(np.std(logs, ddof=1))
    logs += EARLY * spread**2
    return dataclasses.replace(
        together,
        verdict="crossed",
        reason="",
        samples=math.exp(float(np.mean(logs))),
        se_log=spread / math.sqrt(len(logs)),
        dof=len(logs) - 1,
        seed_samples=tuple(np.exp(logs).tolist()),
    )
