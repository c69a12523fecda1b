"""The noise probe: which pair of gradient norms each update gives, and what is told of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.theory.noise_scale import MIN_WINDOWS, NoiseEstimate, NoiseMeter, estimate
from orchestrator.training.reducer import Share, Totals

# The noise scale grows along training, so that it is told of the recent past: this share of the updates so far. Over a
# whole run, early large gradients would pull it down.
RECENT_SHARE = 0.1

PARTS = ("trace", "trace_se", "g2", "g2_se", "correlation", "blocks")
"""Of an estimate: ``noise_scale_<part>`` at each evaluation."""


class NoiseProbe:
    """Pairs a small batch's squared gradient norm with the global batch's, once an update, before clipping.

    With several workers the small batches are the workers' shares; with one worker they are its micro batches. Weights
    may differ: a share of weight w_r out of W counts as b_r = B w_r / W samples, and as
    E|g_r|^2 = |G|^2 + tr(Sigma) / b_r, the mean square over r belongs to a batch of 1 / mean(1 / b_r) samples.
    """

    def __init__(self, plan: BatchPlan, *, enabled: bool) -> None:
        self._asked = enabled
        self._meter = NoiseMeter()
        self.split(plan)

    def split(self, plan: BatchPlan) -> None:
        """From now on, updates are made by `plan`."""
        self._plan = plan
        self.enabled = self._asked and plan.world_size * plan.accumulation > 1
        self.micro_norms = self.enabled and plan.world_size == 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it: every window, in tensors, which are read faster than lists."""
        windows = self._meter.to_dict()
        return {name: torch.tensor([*map(_number, values)], dtype=torch.float64) for name, values in windows.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self._meter = NoiseMeter.from_dict({name: values.tolist() for name, values in state.items()})

    def add(self, totals: Totals, share: Share, grad_norm: float) -> None:
        """Take one update's norms; `grad_norm` is that of its mean gradient. An update with one share tells nothing."""
        if not self.enabled:
            return
        if self.micro_norms:
            count = len(share.micro_norms)
            square = sum(square for square, _ in share.micro_norms)
            inverse = sum(1.0 / weight for _, weight in share.micro_norms)
        else:
            count, square, inverse = round(totals.counted), totals.square_sum, totals.inverse_sum
        if count < 2 or not math.isfinite(inverse):  # a weight may be too small for its inverse to be a number
            return
        big = self._plan.global_batch
        small = big * count / (totals.weight * inverse)
        self._meter.append(square / count, grad_norm * grad_norm, small, big)

    def drop(self) -> None:
        """Count an update whose gradient was not finite: it tells nothing, and is told of as dropped."""
        if self.enabled:
            self._meter.append(math.nan, math.nan, 1, 2)

    def recent(self) -> NoiseEstimate:
        """The estimate over the last `RECENT_SHARE` of the updates, as few as can tell one at least."""
        return self._meter.estimate(max(MIN_WINDOWS, math.ceil(RECENT_SHARE * len(self._meter))))

    def metrics(self) -> dict[str, float]:
        """``noise_scale`` of the recent updates with its interval, if it is determined; its parts in any case.

        Parts of several runs can be averaged, where a ratio of each alone is not determined.
        """
        found = self.recent() if len(self._meter) else None
        if found is None or found.correlation is None:
            return {}
        told = {"noise_scale": found.value, "noise_scale_low": found.low, "noise_scale_high": found.high}
        told |= {f"noise_scale_{name}": getattr(found, name) for name in PARTS}
        return {name: value for name, value in told.items() if value is not None}

    def outcome(self) -> dict[str, Any] | None:
        """The estimate over the whole run, or why there is none; None if the probe was not asked for.

        ``end_value``, ``end_low``, ``end_high``, ``end_windows`` and ``end_reason`` are those of its end alone, over
        the same window as that of an evaluation.
        """
        if not self._asked:
            return None
        known = self.enabled or len(self._meter) > 0
        whole = self._meter.estimate() if known else estimate([], [])
        end = self.recent() if known else whole
        if not known:
            reason = (
                "not determined: one worker without accumulation has one batch size only; "
                "use 2 workers or an accumulation of 2"
            )
            whole, end = (dataclasses.replace(one, reason=reason) for one in (whole, end))
        kept = ("value", "low", "high", "windows", "reason")
        return whole.to_dict() | {f"end_{name}": getattr(end, name) for name in kept}


def _number(value: float | None) -> float:
    return math.nan if value is None else value
