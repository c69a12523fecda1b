"""What a training run tells: evaluations on the way, and one outcome at the end. No torch in here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["completed", "target_reached", "stopped", "diverged", "failed"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation, known by (trial key, `samples_seen`).

    `metrics` maps names of docs/mlflow-schema.md (``val/loss``, ``train/loss``, ``lr``, ``grad_norm``, ...) to finite
    floats; a metric that is not finite or not determined is left out.
    """

    samples_seen: int
    updates: int
    metrics: dict[str, float]
    train_seconds: float


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What went wrong on which rank, agreed by all ranks. `out_of_memory` says that less work at once might fit."""

    rank: int
    phase: Literal["setup", "loader", "forward", "backward", "update", "evaluation"]
    kind: str
    message: str
    traceback: str = ""
    out_of_memory: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a training run ended.

    Args:
        reason: a sentence for people, empty for ``completed``.
        first_grad_norms: norms of the mean gradient before clipping, first 20 updates.
        noise: the noise-scale estimate over the whole run (see `theory.noise_scale`), as a dict, or None.
        skipped_updates: windows with no weight at all, or skipped by the loss scaler.
        notes: findings such as "statistically equal: batch norm depends on the split".
        resumed_from: samples seen of the checkpoint that it went on from; None if it began at the beginning.
        plan: ``micro_batch``, ``accumulation`` and ``world_size`` at the end; None if it was never set up.
    """

    status: Status
    samples_seen: int
    updates: int
    train_seconds: float
    reason: str = ""
    failure: Failure | None = None
    first_grad_norms: tuple[float, ...] = ()
    noise: dict[str, Any] | None = None
    skipped_updates: int = 0
    peak_memory_bytes: int = 0
    first_update_at: float | None = None
    last_update_at: float | None = None
    notes: tuple[str, ...] = field(default=())
    resumed_from: int | None = None
    plan: dict[str, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Outcome:
        """Rebuild an outcome written by `to_dict`."""
        failure = Failure(**raw["failure"]) if raw.get("failure") else None
        tuples = {k: tuple(raw[k]) for k in ("first_grad_norms", "notes")}
        return cls(**{**raw, **tuples, "failure": failure})
