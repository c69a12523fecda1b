"""What an evaluation tells about training since the one before: mean loss, speed, waiting."""

from __future__ import annotations

import math
import time
from typing import Any

from orchestrator.training.reducer import Share, Totals

_KEPT = ("train_seconds", "_grad_norm", "_loss", "_weight", "_seconds", "_wait_s", "_samples", "_updates")


class TrainingWindow:
    """Sums over the updates since the last evaluation, and a clock that stands still during evaluations.

    Attributes:
        train_seconds: seconds of training in the whole trial, up to the last `stop_clock`.
    """

    def __init__(self) -> None:
        self.train_seconds = 0.0
        self._grad_norm = math.nan
        self.clear()

    def clear(self) -> None:
        """Begin a new window."""
        self._loss = self._weight = self._seconds = self._wait_s = 0.0
        self._samples = self._updates = 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it; its clock must stand still."""
        return {name.lstrip("_"): getattr(self, name) for name in _KEPT}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        for name in _KEPT:
            setattr(self, name, state[name.lstrip("_")])

    def start_clock(self) -> None:
        """Training goes on."""
        self._clock = time.perf_counter()

    def stop_clock(self) -> None:
        """Training pauses."""
        passed = time.perf_counter() - self._clock
        self._seconds += passed
        self.train_seconds += passed

    def add(self, totals: Totals, share: Share, samples: int, grad_norm: float | None) -> None:
        """Count one update of `samples`; `grad_norm` is None if it was skipped."""
        self._loss += totals.loss
        self._weight += totals.weight
        self._samples += samples
        self._updates += 1
        self._wait_s += share.wait_s
        if grad_norm is not None:
            self._grad_norm = grad_norm

    def shared(self) -> dict[str, float]:
        """Metrics that are equal on all ranks: ``train/loss``, the mean by weight, and ``grad_norm``, the last update's
        before clipping (NaN before the first)."""
        loss = self._loss / self._weight if self._weight else math.nan
        return {"train/loss": loss, "grad_norm": self._grad_norm}

    def speed(self) -> dict[str, float]:
        """This rank's own: samples of all workers a second, mean ms an update, and the share of it spent waiting."""
        if not self._updates or self._seconds <= 0:
            return {}
        return {
            "samples_per_second": self._samples / self._seconds,
            "step_ms": 1e3 * self._seconds / self._updates,
            "data_wait_fraction": self._wait_s / self._seconds,
        }
