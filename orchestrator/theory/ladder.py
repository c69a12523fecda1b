"""The words of a critical-batch study: its configuration, its runs and their results.

What to train next is in `ladder_planner`, when to stop a run in `ladder_stop`, what was found in `ladder_summary`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from orchestrator.theory._checks import positive, whole
from orchestrator.theory.local_parabola import LEAST_FACTOR, WIDEST_FACTOR, Curve
from orchestrator.theory.target_crossing import OVERSHOOT

Mode = Literal["min", "max"]
Purpose = Literal["search", "final"]
Ended = Literal["overshot", "budget", "raced", "diverged"]

SEARCH_OVERSHOOT = 1.4
"""Search runs are only compared with each other: a shorter tail does."""
AROUND = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 2.0, 8.0)
"""A ladder around a noise scale: close steps below, where the exponent is measured; wide ones above, which are dear."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What to train next, at a constant peak learning rate.

    Attributes:
        global_batch: B, samples.
        lr: peak learning rate.
        seed: of initial weights and sample order.
        max_samples: the budget.
        purpose: `search` runs are compared and raced; `final` runs are what the critical batch is fitted to.
        overshoot: train to this factor past the run's own crossing (`ladder_stop.beyond`), but
        least_samples: at least so far, so that a lucky seed is not cut off before the others cross.
    """

    global_batch: int
    lr: float
    seed: int
    max_samples: int
    purpose: Purpose
    overshoot: float = OVERSHOOT
    least_samples: int = 0

    @property
    def key(self) -> tuple[int, float, int, str]:
        """What tells it from every other run of its study."""
        return (self.global_batch, self.lr, self.seed, self.purpose)


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """A run that ended.

    Attributes:
        run: what was asked for.
        curve: its evaluations; the last one is where it ended.
        ended: ``overshot`` (past the target as far as asked), ``budget``, ``raced`` (it could no longer win) or
            ``diverged`` (a value or a loss that is not finite).
    """

    run: Run
    curve: Curve
    ended: Ended

    @property
    def samples(self) -> float:
        """Samples that it trained."""
        return float(self.curve.samples[-1])


@dataclass(frozen=True, kw_only=True)
class LadderConfig:
    """A critical-batch study.

    Attributes:
        batches: global batches, distinct, at least 3 for a fit; `around` places them.
        start_lr: a learning rate that is stated at
        reference_batch: this batch; it may be off by a factor of ten.
        lr_low: least learning rate to try.
        lr_high: largest.
        target: value of the metric to reach.
        mode: ``min`` if less is better, ``max`` if more.
        budget_samples: most samples of one run.
        total_samples: most samples of all runs; no run is started beyond it.
        final_least: seeds at the best learning rate of every batch, at least 2.
        final_most: seeds at most, where the precision or the interval asks for more.
        precision: standard error of ln(samples to target) that every batch is measured to.
        search_most: seeds of one learning rate in the search, at most.
        width: the study ends where the interval's high / low is at most this.
        regret: the search at a batch ends where the best guess is expected to cost at most this share more samples
            than the best learning rate would.
        noise_scale: measured in a first run, if it was: a hint of where the best learning rate saturates.
        seed: of the study.
    """

    batches: tuple[int, ...]
    start_lr: float
    reference_batch: int
    lr_low: float
    lr_high: float
    target: float
    mode: Mode = "min"
    budget_samples: int
    total_samples: int
    final_least: int = 5
    final_most: int = 12
    precision: float = 0.035
    search_most: int = 4
    width: float = 1.5
    regret: float = 0.015
    noise_scale: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for batch in self.batches:
            whole("batches", batch)
        if len(set(self.batches)) != len(self.batches) or not self.batches:
            raise ValueError(f"batches = {self.batches}: must be distinct, and at least one")
        whole("reference_batch", self.reference_batch)
        for name in ("start_lr", "lr_low", "lr_high", "regret", "precision"):
            positive(name, getattr(self, name))
        if not self.lr_low <= self.start_lr <= self.lr_high:
            raise ValueError(
                f"start_lr = {self.start_lr!r}: must be from lr_low = {self.lr_low!r} to lr_high = {self.lr_high!r}"
            )
        if not math.isfinite(self.target) or self.mode not in ("min", "max"):
            raise ValueError(f"target = {self.target!r}, mode = {self.mode!r}: must be finite, and min or max")
        whole("budget_samples", self.budget_samples, max(self.batches))
        whole("total_samples", self.total_samples, self.budget_samples)
        whole("search_most", self.search_most)
        whole("final_least", self.final_least, 2)
        whole("final_most", self.final_most, self.final_least)
        if not self.width > 1.0:
            raise ValueError(f"width = {self.width!r}: high / low of an interval, must be above 1")
        if self.noise_scale is not None:
            positive("noise_scale", self.noise_scale)

    def seed_of(self, global_batch: int, purpose: Purpose, number: int) -> int:
        """The `number`-th seed of a purpose: learning rates of a batch share theirs, search and final runs share none.

        The winner was lucky on the seeds that it won on; others tell what it is worth.
        """
        words = np.random.SeedSequence([self.seed, global_batch, ("search", "final").index(purpose), number])
        return int(words.generate_state(1)[0]) >> 1


def around(noise_scale: float, factors: Iterable[float] = AROUND) -> tuple[int, ...]:
    """A ladder of powers of two around a noise scale in samples, > 0; fewer where it would go below 1.

    >>> around(30.0)
    (2, 4, 8, 16, 64, 256)
    """
    positive("noise_scale", noise_scale)
    return tuple(sorted({2 ** max(0, round(math.log2(factor * noise_scale))) for factor in factors}))


def check_overshoot(overshoot: float) -> None:
    """Raise where the crossing could not be fitted."""
    if not LEAST_FACTOR <= overshoot <= WIDEST_FACTOR:
        raise ValueError(f"overshoot = {overshoot!r}: must be from {LEAST_FACTOR} to {WIDEST_FACTOR}")
