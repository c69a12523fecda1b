"""How far a trial is, and the records that tell of it."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.training.failures import describe, first_failure
from orchestrator.training.group import Group
from orchestrator.training.memory import peak_bytes
from orchestrator.training.parts import Parts
from orchestrator.training.records import Evaluation, Failure, Outcome, Status
from orchestrator.training.window import TrainingWindow

_KEPT_NORMS = 20
_COUNTS = ("samples_seen", "updates", "skipped", "lr")


class Ending(NamedTuple):
    """Why a trial ends; equal on all ranks."""

    status: Status
    reason: str = ""
    failure: Failure | None = None


def split_of(plan: BatchPlan) -> dict[str, int]:
    """How `plan` splits its global batch."""
    return {name: getattr(plan, name) for name in ("micro_batch", "accumulation", "world_size")}


def changed_split(given: BatchPlan, now: BatchPlan) -> dict[str, float]:
    """``geometry/<factor>`` of each factor that is no longer what was asked for."""
    asked = split_of(given)
    return {f"geometry/{name}": float(value) for name, value in split_of(now).items() if value != asked[name]}


class Progress:
    """The counts of one trial; all but the times are equal on all ranks.

    Args:
        saved: what `state` gave, to go on from there.
        begins_at: samples seen before the first update of a trial that has none of its own behind it.

    Attributes:
        samples_seen: the clock.
        updates: optimizer steps.
        skipped: windows without weight, or skipped by the loss scaler.
        lr: of the last update.
        resumed_from: samples seen of the checkpoint that it was restored from, if it was.
    """

    def __init__(self, saved: dict[str, Any] | None = None, *, begins_at: int = 0) -> None:
        self.window = TrainingWindow()
        self.samples_seen, self.updates, self.skipped = begins_at, 0, 0
        self.lr = 0.0
        self.resumed_from: int | None = None
        self._norms: list[float] = []
        self._first_update_at: float | None = None
        self._last_update_at: float | None = None
        if saved is not None:
            self._restore(saved)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        times = {"first_update_at": self._first_update_at, "last_update_at": self._last_update_at}
        return {**counts, **times, "norms": self._norms, "window": self.window.state()}

    def _restore(self, state: dict[str, Any]) -> None:
        for name in _COUNTS:
            setattr(self, name, state[name])
        self._first_update_at, self._last_update_at = state["first_update_at"], state["last_update_at"]
        self._norms = list(state["norms"])
        self.window.restore(state["window"])
        self.resumed_from = self.samples_seen

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

    def outcome(
        self,
        ending: Ending,
        failure: Failure | None,
        parts: Parts,
        group: Group,
        *,
        plan: BatchPlan,
        notes: tuple[str, ...],
    ) -> Outcome:
        """The outcome, agreed by all ranks in one collective; `failure` of this rank may be news to the others.

        Args:
            plan: the last split of the batch.
            notes: what only this rank knows; rank 0's are told.
        """
        answers = group.gather_objects((failure, peak_bytes(group.device), notes))
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
            notes=parts.notes + answers[0][2],
            resumed_from=self.resumed_from,
            plan=split_of(plan),
        )
