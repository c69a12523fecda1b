"""What the runs of all batches tell together: each batch's valley, where the range of learning rates binds, the fit.

The planner chooses by it and the summary reports it, so that both speak of the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from orchestrator.theory.critical_batch import CriticalBatch, fit
from orchestrator.theory.ladder import LadderConfig, Result
from orchestrator.theory.ladder_batch import FAILURES, START_SD, BatchRuns, Bound, batch_runs
from orchestrator.theory.ladder_rate import Guess, guess_lr
from orchestrator.theory.ladder_valley import REGRET_CAP, Valley
from orchestrator.theory.observation import Observation

FIRST_EXPONENT = 0.5
"""From the reference batch to the ladder, where nothing else is known."""
BOUNDED = 0.1
"""A batch is bounded where its best learning rate lies outside of the range with this probability."""
DECISIVE = 0.05
"""A bounded batch that is expected to cost so much more than at its best is left out of the fit."""
NOT_REACHED = {
    "budget": "Give more samples, or an easier target",
    "diverged": "Every run diverged: look at the task and the precision, or allow lower learning rates",
    "low": "Runs came to rest above it or diverged down to the least learning rate allowed: allow lower ones",
    "high": "Runs still came closer at the largest learning rate allowed: allow higher ones, or give more samples",
}
"""What to do about a batch that did not reach the target, by `BatchRuns.why_lost`."""


class Ladder:
    """The results by batch, ascending.

    >>> ladder = Ladder(LadderConfig(batches=(8, 32), start_lr=0.1, reference_batch=8, lr_low=0.01, lr_high=1.0,
    ...                              target=0.5, budget_samples=1000, total_samples=10_000), [])
    >>> round(math.exp(ladder.prior(32).log_lr), 12), ladder.bounded(32), ladder.fit().verdict
    (0.2, None, 'unreachable')
    """

    def __init__(self, config: LadderConfig, results: Sequence[Result]) -> None:
        self.config = config
        self.views = {batch: batch_runs(config, batch, results) for batch in sorted(config.batches)}
        self._valleys: dict[int, Valley] = {}

    def prior(self, batch: int) -> Guess:
        """What other batches tell of the best learning rate."""
        known = [view.known for other, view in self.views.items() if other != batch]
        points = [point for point in known if point is not None]
        if points:
            return guess_lr(points, batch, self.config.noise_scale)
        shift = FIRST_EXPONENT * math.log(batch / self.config.reference_batch)
        return Guess(log_lr=math.log(self.config.start_lr) + shift, sd=START_SD)

    def valley(self, batch: int) -> Valley:
        """What its own runs tell together with those of others: the rate from all of them, the shape from the next."""
        if batch not in self._valleys:
            others = [other for other, view in self.views.items() if other != batch and view.best is not None]
            near = min(others, key=lambda other: (abs(math.log(other / batch)), other), default=None)
            shapes = None if near is None else self.views[near].alone.shapes()
            self._valleys[batch] = self.views[batch].valley(self.prior(batch), shapes)
        return self._valleys[batch]

    def excess(self, batch: int) -> float:
        """Expected excess in ln(samples) of the final learning rate, or of the one that would be chosen."""
        lr, valley = final_lr(self.views[batch]), self.valley(batch)
        if lr is None:
            return valley.best()[1]
        return float(valley.weight @ np.minimum(valley.height(np.array([math.log(lr)]))[:, 0], REGRET_CAP))

    def bounded(self, batch: int) -> Bound | None:
        """The end of the range beyond which the best learning rate of a batch that reached the target may lie."""
        view, config = self.views[batch], self.config
        if view.best is None:
            return None
        lr = final_lr(view)
        if _exhausted(view) and (lr is None or view.failed(lr)):
            return "low"
        valley = self.valley(batch)
        above = float(np.sum(valley.weight[valley.floor > math.log(config.lr_high)]))
        below = float(np.sum(valley.weight[valley.floor < math.log(config.lr_low)]))
        if max(above, below) <= BOUNDED:
            return None
        return "high" if above > below else "low"

    def left_out(self) -> tuple[int, ...]:
        """Batches whose samples-to-target the range of learning rates decides, rather than the batch."""
        return tuple(b for b in self.views if self.bounded(b) is not None and self.excess(b) > DECISIVE)

    def why_lost(self) -> dict[int, Bound]:
        """For each batch that was tried without reaching the target, what stood in its way."""
        return {b: view.why_lost for b, view in self.views.items() if view.results and view.best is None}

    def fit(self) -> CriticalBatch:
        """The critical batch by final runs and batches out of reach, without those that the range decides."""
        left_out = self.left_out()
        kept = [view for batch, view in self.views.items() if batch not in left_out]
        found = fit(observation for view in kept for observation in _observations(view))
        reason = found.reason
        ways = sorted(set(self.why_lost().values()))
        if found.verdict in ("unreachable", "too few batches") and any(way != "budget" for way in ways):
            reason = f"{reason.partition('. ')[0]}. {'. '.join(NOT_REACHED[way] for way in ways)}"
        if reason and left_out:
            batches = ", ".join(map(str, left_out))
            reason += f". Batches left out, whose best learning rate lies outside of the range: {batches}. Widen it"
        return dataclasses.replace(found, reason=reason)


def final_lr(view: BatchRuns) -> float | None:
    """The learning rate of the final runs, the lowest if higher ones failed; the best one if all that may fail did.

    None where there is none yet, or none that reaches the target.
    """
    lrs = sorted({one.run.lr for one in view.results if one.run.purpose == "final"})
    holding = [lr for lr in lrs if not view.failed(lr)]
    if holding or not (len(lrs) >= FAILURES or _exhausted(view)):
        return min(holding, default=None)
    reached = {lr: samples for lr in lrs if (samples := view.final_crossings[lr].samples)}
    return min(reached, key=lambda lr: reached[lr], default=None)


def _exhausted(view: BatchRuns) -> bool:
    """Whether final runs failed at the least learning rate, so that none is left below."""
    least = view.config.lr_low
    return any(one.run.purpose == "final" and one.run.lr <= least for one in view.results) and view.failed(least)


def _observations(view: BatchRuns) -> tuple[Observation, ...]:
    if view.met_at_start:
        return (Observation(global_batch=view.global_batch, samples=0.0),)
    lr = final_lr(view)
    if lr is not None:
        return view.final_crossings[lr].observations(view.global_batch)
    spent = [one.samples for one in view.results if one.ended == "budget"]
    if view.best is not None or not spent or view.why_lost != "budget":
        return ()
    return (Observation(global_batch=view.global_batch, samples=max(spent), censored=True),)
