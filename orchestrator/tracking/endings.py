"""How the end of a trial or sweep reads in MLflow: run status, tags and last metrics. Pure functions of the event."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from orchestrator.tracking.events import Event
from orchestrator.tracking.mlflow_client import Point
from orchestrator.tracking.params import shortened

TRIAL_STATUS = {
    "completed": "FINISHED",
    "target_reached": "FINISHED",
    "stopped": "FINISHED",
    "diverged": "FAILED",
    "failed": "FAILED",
}
SWEEP_STATUS = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}

# MLflow cuts tags at 8,000 characters without a word.
_LONGEST_TAG = 4000


def ending_tags(event: Event) -> dict[str, str]:
    """Tags of a trial's run, from its ``trial_ended`` event."""
    outcome: dict[str, Any] = event.get("outcome") or {}
    failure: dict[str, Any] = outcome.get("failure") or {}
    diverged = event["status"] == "diverged"
    tags = {
        "status": event["status"],
        "stopped_by": event.get("stopped_by"),
        "diverged": "true" if diverged else None,
        "diverged_at_samples": outcome.get("samples_seen") if diverged else None,
        "reason": event.get("reason"),
        "failure/kind": failure.get("kind"),
        "failure/phase": failure.get("phase"),
        "failure/rank": failure.get("rank"),
        "resumed_from": outcome.get("resumed_from"),
        "notes": "; ".join(outcome.get("notes") or ()),
    }
    return {key: shortened(str(value), _LONGEST_TAG) for key, value in tags.items() if value not in (None, "")}


def geometry(plan: Mapping[str, Any] | None, of_spec: Mapping[str, Any]) -> dict[str, str]:
    """The tag of a trial that is not split as its spec says; nothing for one that is.

    Args:
        plan: micro_batch, accumulation and world_size now; None if it is not known.
        of_spec: those of the trial's spec.
    """
    names = ("micro_batch", "accumulation", "world_size")
    if not plan or all(plan.get(name) == of_spec.get(name) for name in names):
        return {}
    return {"geometry": " x ".join(str(plan.get(name, "?")) for name in names)}


def ending_points(event: Event, global_batch: int, evaluated_at: int = -1) -> list[Point]:
    """Metrics of a trial's run, from its ``trial_ended`` event; the steps are in samples.

    Args:
        event: the event.
        global_batch: samples an update, which places the norms of the first updates.
        evaluated_at: samples seen at the last evaluation, which has told the memory at that step already.
    """
    outcome: dict[str, Any] = event.get("outcome") or {}
    end = int(outcome.get("samples_seen") or 0)
    values: dict[str, Any] = {
        **_objective_values(event),
        "turnaround_s": event.get("turnaround_s"),
        "skipped_updates": outcome.get("skipped_updates"),
        "peak_memory_bytes": (end != evaluated_at and outcome.get("peak_memory_bytes")) or None,
        **{f"noise/{name}": value for name, value in (outcome.get("noise") or {}).items()},
    }
    points = [Point(name, float(value), event["t"], end) for name, value in values.items() if _is_finite(value)]
    norms = enumerate(outcome.get("first_grad_norms") or (), start=1)
    early = [
        Point("early_grad_norm", float(norm), event["t"], update * global_batch)
        for update, norm in norms
        if _is_finite(norm)
    ]
    return points + early


def _objective_values(event: Event) -> dict[str, Any]:
    value = event.get("value")
    if event["status"] in ("diverged", "failed"):
        return {}
    if isinstance(value, list | tuple):
        return dict(zip(("value/updates", "value/samples"), value, strict=True))
    return {"value": value}


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
