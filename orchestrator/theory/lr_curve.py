"""The result of training as a function of the peak learning rate at one global batch, from finished trials."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.theory._checks import positive, whole

SAME_LOG_LR = 1e-9
"""Learning rates whose logarithms differ by less are one."""


@dataclass(frozen=True, kw_only=True)
class LossByLr:
    """A curve through the tried learning rates; less is better.

    Attributes:
        log_lrs: natural logarithms of the tried peaks, ascending, distinct.
        losses: the best loss at each; inf where every trial diverged.
    """

    log_lrs: tuple[float, ...]
    losses: tuple[float, ...]

    def at(self, log_lr: float) -> tuple[float, bool] | None:
        """(loss, interpolated), or None outside of the tried range, on a diverged peak, or next to one.

        >>> curve = LossByLr(log_lrs=(0.0, 1.0, 2.0), losses=(3.0, 1.0, math.inf))
        >>> curve.at(1.0), curve.at(0.25), curve.at(1.5), curve.at(-0.1)
        ((1.0, False), (2.5, True), None, None)
        """
        right = bisect.bisect_left(self.log_lrs, log_lr - SAME_LOG_LR)
        if right == len(self.log_lrs):
            return None
        if self.log_lrs[right] <= log_lr + SAME_LOG_LR:
            return (self.losses[right], False) if math.isfinite(self.losses[right]) else None
        if right == 0:
            return None
        x0, x1 = self.log_lrs[right - 1 : right + 1]
        y0, y1 = self.losses[right - 1 : right + 1]
        if not (math.isfinite(y0) and math.isfinite(y1)):
            return None
        share = (log_lr - x0) / (x1 - x0)
        return (1.0 - share) * y0 + share * y1, True


def loss_by_lr(trials: Iterable[tuple[int, float, float]]) -> dict[int, LossByLr]:
    """A curve for each global batch with at least one finite loss, by batch size.

    Args:
        trials: ``(global_batch, peak_lr, loss)``; of several at one batch and peak the best counts, and a loss that is
            not finite is a diverged trial.

    Raises:
        ValueError: for a batch that is not a whole number of at least 1, or a peak that is not above 0.
    """
    best: dict[int, dict[float, float]] = {}
    for batch, lr, loss in trials:
        log_lr = math.log(positive("peak_lr", lr))
        curve = best.setdefault(whole("global_batch", batch), {})
        known = next((x for x in curve if abs(x - log_lr) <= SAME_LOG_LR), log_lr)
        curve[known] = min(curve.get(known, math.inf), loss if math.isfinite(loss) else math.inf)
    return {
        batch: LossByLr(log_lrs=tuple(sorted(curve)), losses=tuple(curve[x] for x in sorted(curve)))
        for batch, curve in sorted(best.items())
        if math.isfinite(min(curve.values()))
    }
