"""The content of `summary.json`: what a sweep found, as one strict JSON value made from its events alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from orchestrator.credentials import hide
from orchestrator.report.advice import what_next
from orchestrator.report.by_batch import by_batch
from orchestrator.report.history import Event, SweepHistory, TrialHistory
from orchestrator.report.objective import Objective
from orchestrator.report.repeats import repeats_of
from orchestrator.report.rules import compared_rules

SCHEMA_VERSION = 1


def build_summary(
    events: Iterable[Event],
    *,
    process_started_at: float | None = None,
    mlflow: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """The summary of a sweep that has at least started.

    Args:
        events: the sweep's events, in order.
        process_started_at: unix seconds at which the driver process started; `first_evaluation_s` counts from it, or
            from the first event if it is not given.
        mlflow: `tracking_uri`, `experiment` and `parent_run_id`; credentials in the address are masked.
        warnings: sentences for the user.

    Returns:
        A dict that `json.dumps(..., allow_nan=False)` takes: whatever is not a finite number is None.

    Raises:
        ValueError: if no event says that the sweep started.
    """
    events = list(events)
    history = SweepHistory.of(events)
    if not history.started:
        raise ValueError("a summary needs the sweep_started event; the record holds none")
    objective = Objective.of(history)
    ranked = objective.ranked(history.searched)
    best = ranked[0] if ranked else None
    rules = compared_rules(history, objective)
    repeats = repeats_of(history, objective)
    summary = {
        "schema_version": SCHEMA_VERSION,
        "name": history.started["name"],
        "status": history.status,
        "objective": {
            "kind": objective.kind,
            "metric": objective.metric,
            "target": objective.target,
            "values": list(objective.names),
            "modes": list(objective.modes),
        },
        "counts": _counts(history),
        "best": _best(best),
        "pareto_front": [_best(trial) for trial in objective.pareto_front(history.searched)]
        if len(objective.names) > 1
        else None,
        "by_batch": by_batch(history, objective),
        "rules": rules,
        "repeats": repeats,
        "turnaround_s": _turnaround(history),
        "first_evaluation_s": _first_evaluation(events, process_started_at),
        "trials": [
            *(_trial(t, history) for t in history.trials.values()),
            *(_reused(event, history) for event in history.reused),
        ],
        "mlflow": mlflow and dict(mlflow),
        "warnings": list(warnings),
        "next": what_next(history, objective, best, rules, repeats),
    }
    strict: dict[str, Any] = finite_only(hide(summary))
    return strict


def finite_only(value: Any) -> Any:
    """`value` with NaN and infinities replaced by None, tuples by lists, NumPy numbers by Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite_only(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite_only(part) for part in value]
    return value


def _trial(trial: TrialHistory, history: SweepHistory) -> dict[str, Any]:
    left_open = trial.status == "running" and history.status != "running"
    return {
        "id": trial.trial,
        "number": trial.number,
        "key": trial.key,
        "status": "unfinished" if left_open else trial.status,
        "phase": trial.phase,
        "repeat_of": trial.repeat_of,
        "params": trial.params,
        "global_batch": trial.global_batch,
        "peak_lr": trial.peak_lr,
        "seed": trial.spec["seed"],
        "value": trial.value,
        "samples_seen": trial.samples_seen,
        "updates": trial.updates,
        "stopped_by": trial.stopped_by,
        "reason": trial.reason,
    }


def _reused(event: Event, history: SweepHistory) -> dict[str, Any]:
    return {
        "id": event["trial"],
        "number": event["number"],
        "status": "reused",
        "phase": "search",
        "of": event["of"],
        "params": event["params"],
        "value": history.trials[event["of"]].value,  # the event may be older than the value
        "reason": f"trains exactly as {event['of']}, whose value it was given",
    }


def _best(trial: TrialHistory | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    return {"trial": trial.trial, "value": trial.value, "params": trial.params, "spec": trial.spec}


def _counts(history: SweepHistory) -> dict[str, int]:
    statuses = [trial.status for trial in history.trials.values()]
    return {
        "completed": statuses.count("completed") + statuses.count("target_reached"),
        "target_reached": statuses.count("target_reached"),
        "stopped": statuses.count("stopped"),
        "failed": statuses.count("failed"),
        "diverged": statuses.count("diverged"),
        "unfinished": statuses.count("running"),
        "reused": len(history.reused),
    }


def _turnaround(history: SweepHistory) -> dict[str, Any]:
    """Seconds from a trial's last update to its gang's next trial's first update."""
    seconds = [t.turnaround_s for t in history.trials.values() if t.turnaround_s is not None]
    return {
        "n": len(seconds),
        "median": float(np.median(seconds)) if seconds else None,
        "p95": float(np.percentile(seconds, 95)) if seconds else None,
    }


def _first_evaluation(events: Sequence[Event], process_started_at: float | None) -> float | None:
    starts = [at for at, event in enumerate(events) if event["event"] in ("sweep_started", "sweep_resumed")]
    own = events[starts[-1] :]
    start = own[0]["t"] if process_started_at is None else process_started_at
    first = next((event["t"] for event in own if event["event"] == "evaluation"), None)
    return None if first is None else float(first - start)
