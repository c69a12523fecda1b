"""Early stopping: pure policies that only decide. `scheduler` acts on what they say.

ASHA (Li 2020) with rungs in samples, and the race: a trial stops when it can no longer beat the best samples (or
seconds) to the target at its batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.config.trial import Mode


def rungs(*, lowest_samples: int, budget_samples: int, eval_every_samples: int, reduction: int) -> list[int]:
    """Rungs in samples, each on the evaluation grid, below the budget.

    Args:
        lowest_samples: the first rung is the first multiple of `eval_every_samples` at or past this; it is at least the
            largest batch of the space, so that a large batch cannot skip rungs that small batches are judged at.
        budget_samples: no rung at or past the budget: a trial there ends anyway.
        eval_every_samples: distance of evaluations.
        reduction: each rung keeps one in `reduction` trials; rungs are this factor apart.

    >>> rungs(lowest_samples=4096, budget_samples=100_000, eval_every_samples=1000, reduction=3)
    [5000, 15000, 45000]
    """
    first = math.ceil(lowest_samples / eval_every_samples) * eval_every_samples
    out = []
    while first < budget_samples:
        out.append(first)
        first *= reduction
    return out


@dataclass
class Asha:
    """Asynchronous successive halving: a trial is judged at its first evaluation at or past each rung.

    At a rung, a trial goes on if it is among the best ``1/reduction`` of those seen there so far; with fewer than
    `reduction` seen there is nothing to compare with, and it goes on.
    """

    rungs: Sequence[int]
    reduction: int
    mode: Mode
    _seen: dict[int, dict[str, float]] = field(default_factory=dict)

    def stops(self, trial: str, samples_seen: int, value: float) -> bool:
        """Whether the trial should stop after this evaluation."""
        sign = 1.0 if self.mode == "max" else -1.0
        stop = False
        for rung in self.rungs:
            seen = self._seen.setdefault(rung, {})
            if samples_seen < rung or trial in seen:
                continue
            seen[trial] = sign * value
            keep = len(seen) // self.reduction
            if keep and sorted(seen.values(), reverse=True)[keep - 1] > sign * value:
                stop = True
        return stop


@dataclass
class Race:
    """Stops a trial that has spent the best cost-to-target of its global batch without reaching the target.

    The cost is what the objective counts: samples, or training seconds. A trial that needs more samples than another
    can still need less time, as a smaller model does.
    """

    _best: dict[int, float] = field(default_factory=dict)

    def stops(self, global_batch: int, cost: float, reached: bool) -> bool:
        """Take note of an evaluation; whether the trial can no longer win at its batch."""
        best = self._best.get(global_batch)
        if reached:
            self._best[global_batch] = cost if best is None else min(best, cost)
            return False
        return best is not None and cost >= best
