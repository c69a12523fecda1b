"""How far a trial is, and the records that tell of it."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from orchestrator.training.failures import describe, first_failure
from orchestrator.training.group import Group
from orchestrator.training.memory import peak_bytes
from orchestrator.training.records import Evaluation, Failure, Outcome, Status
from orchestrator.training.setup import Parts
from orchestrator.training.window import TrainingWindow

_KEPT_NORMS = 20


class Ending(NamedTuple):
    """Why a trial ends; equal on all ranks."""

    status: Status
    reason: str = ""
    failure: Failure | None = None


class Progress:
    """The counts of one trial; all but the times are equal on all ranks.

    Attributes:
        samples_seen: the clock.
        updates: optimizer steps.
        skipped: windows without weight, or skipped by the loss scaler.
        lr: of the last update.
    """

    def __init__(self) -> None:
        self.window = TrainingWindow()
        self.samples_seen = self.updates = self.skipped = 0
        self.lr = 0.0
        self._norms: list[float] = []
        self._first_update_at: float | None = None
        self._last_update_at: float | None = None

    def count_update(self, grad_norm: float, lr: float) -> None:
        """An optimizer step was made."""
        self.updates += 1
        self.lr = lr
        self._last_update_at = time.time()
        if self._first_update_at is None:
            self._first_update_at = self._last_update_at
        if len(self._norms) < _KEPT_NORMS:
            self._norms.append(grad_norm)

    def diverged(self, what: str) -> Ending:
        """The ending for a number that is not finite."""
        return Ending("diverged", f"{what} is not finite after {self.samples_seen} samples")

    def evaluation(self, shared: dict[str, float], parts: Parts, group: Group) -> Evaluation:
        """The record of an evaluation as this rank sees it; what is not finite is left out.

        Args:
            shared: the metrics that are equal on all ranks.
        """
        metrics = shared | self.window.speed() | parts.probe.metrics()
        metrics["peak_memory_bytes"] = peak_bytes(group.device)
        if parts.scaler.dynamic:
            metrics["loss_scale"] = parts.scaler.scale
        return Evaluation(
            samples_seen=self.samples_seen,
            updates=self.updates,
            metrics={name: float(value) for name, value in metrics.items() if math.isfinite(value)},
            train_seconds=self.window.train_seconds,
        )

    def outcome(self, ending: Ending, failure: Failure | None, parts: Parts, group: Group) -> Outcome:
        """The outcome, agreed by all ranks in one collective; `failure` of this rank may be news to the others."""
        answers = group.gather_objects((failure, peak_bytes(group.device)))
        found = first_failure(answer[0] for answer in answers) or ending.failure
        return Outcome(
            status="failed" if found else ending.status,
            reason=describe(found) if found else ending.reason,
            failure=found,
            samples_seen=self.samples_seen,
            updates=self.updates,
            train_seconds=self.window.train_seconds,
            first_grad_norms=tuple(self._norms),
            noise=parts.probe.outcome(),
            skipped_updates=self.skipped,
            peak_memory_bytes=max(answer[1] for answer in answers),
            first_update_at=self._first_update_at,
            last_update_at=self._last_update_at,
            notes=parts.notes,
        )
