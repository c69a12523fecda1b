"""The result tables of a run directory: ``trials.parquet`` and ``evaluations.parquet``, rebuilt from the events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.config.trial import Target, TrialSpec
from orchestrator.storage import Uri, join, write_stream
from orchestrator.tracking.events import Event
from orchestrator.tracking.params import text_of

Row = dict[str, Any]

# A column whose type does not depend on which trials have ended, so that tables of two sweeps can be joined.
_TRIAL_COLUMNS = (
    ("trial", pa.string()),
    ("number", pa.int64()),
    ("key", pa.string()),
    ("phase", pa.string()),
    ("repeat_of", pa.string()),
    ("reused_from", pa.string()),
    ("status", pa.string()),
    ("stopped_by", pa.string()),
    ("reason", pa.string()),
    ("value", pa.float64()),
    ("value_2", pa.float64()),
    ("samples_seen", pa.int64()),
    ("updates", pa.int64()),
    ("train_seconds", pa.float64()),
    ("samples_to_target", pa.int64()),
    ("updates_to_target", pa.int64()),
    ("seconds_to_target", pa.float64()),
    ("turnaround_s", pa.float64()),
    ("skipped_updates", pa.int64()),
    ("peak_memory_bytes", pa.int64()),
    ("noise_scale", pa.float64()),
    ("noise_scale_low", pa.float64()),
    ("noise_scale_high", pa.float64()),
    ("started_at", pa.timestamp("us", tz="UTC")),
    ("ended_at", pa.timestamp("us", tz="UTC")),
    ("seed", pa.int64()),
    ("global_batch", pa.int64()),
    ("micro_batch", pa.int64()),
    ("accumulation", pa.int64()),
    ("world_size", pa.int64()),
    ("per_worker_batch", pa.int64()),
    ("reference_batch", pa.int64()),
    ("lr_base", pa.float64()),
    ("lr_rule", pa.string()),
    ("lr_peak", pa.float64()),
    ("lr_warmup_samples", pa.int64()),
    ("lr_decay", pa.string()),
    ("lr_final", pa.float64()),
    ("optimizer", pa.string()),
    ("precision", pa.string()),
    ("budget_samples", pa.int64()),
    ("eval_every_samples", pa.int64()),
)

_EVALUATION_COLUMNS = (
    ("trial", pa.string()),
    ("key", pa.string()),
    ("samples_seen", pa.int64()),
    ("updates", pa.int64()),
    ("train_seconds", pa.float64()),
    ("at", pa.timestamp("us", tz="UTC")),
)


def write_results(events: Iterable[Event], out: Uri) -> None:
    """Write both tables into the folder `out` (a local path or a pyarrow URI), each atomically.

    Cheap enough to be called at the end of every trial.

    Raises:
        StorageError: if `out` cannot be written.
    """
    listed = list(events)
    for name, table in (("trials", trials_table(listed)), ("evaluations", evaluations_table(listed))):
        write_stream(join(out, f"{name}.parquet"), partial(pq.write_table, table))


def trials_table(events: Iterable[Event]) -> pa.Table:
    """A row a trial, in the order of starting; reused suggestions too, with the status ``reused``.

    Besides the fixed columns there is one for each searched parameter, by its dotted key, and ``spec``, the trial's
    whole resolved spec as JSON. A trial without an end has the status ``running``.
    """
    rows: dict[str, Row] = {}
    targets: dict[str, Target | None] = {}
    reused: list[Event] = []
    for event in events:
        kind = event["event"]
        if kind == "trial_started":
            spec = TrialSpec.from_dict(event["spec"])
            rows.setdefault(event["trial"], {}).update(_started_row(event, spec))
            targets[event["trial"]] = spec.target
        elif kind == "trial_reused":
            rows[event["trial"]] = {}
            reused.append(event)
        elif kind == "evaluation" and event["trial"] in rows:
            _add_evaluation(rows[event["trial"]], event, targets[event["trial"]])
        elif kind == "trial_ended" and event["trial"] in rows:
            rows[event["trial"]].update(_ended_row(event))
    # Last, for the trial whose result is taken may have been running when it was taken.
    for event in reused:
        rows[event["trial"]].update(_reused_row(event, rows.get(event["of"], {})))
    return _table(rows.values(), _TRIAL_COLUMNS)


def evaluations_table(events: Iterable[Event]) -> pa.Table:
    """A row an evaluation, with every metric as a column; one that is known by (trial key, samples seen) once."""
    keys: dict[str, str] = {}
    rows: dict[tuple[str, int], Row] = {}
    for event in events:
        if event["event"] == "trial_started":
            keys[event["trial"]] = event["key"]
        elif event["event"] == "evaluation":
            key = keys.get(event["trial"], "")
            row = {
                **{name: float(value) for name, value in event["metrics"].items()},
                "trial": event["trial"],
                "key": key,
                "samples_seen": event["samples_seen"],
                "updates": event["updates"],
                "train_seconds": event["train_seconds"],
                "at": _microseconds(event["t"]),
            }
            rows.setdefault((key, event["samples_seen"]), row)
    return _table(rows.values(), _EVALUATION_COLUMNS)


def _started_row(event: Event, spec: TrialSpec) -> Row:
    plan, lr = spec.plan, spec.lr
    return {
        "trial": event["trial"],
        "number": event["number"],
        "key": event["key"],
        "phase": event["phase"],
        "repeat_of": event.get("repeat_of"),
        "status": "running",
        "started_at": _microseconds(event["t"]),
        "seed": spec.seed,
        "global_batch": plan.global_batch,
        "micro_batch": plan.micro_batch,
        "accumulation": plan.accumulation,
        "world_size": plan.world_size,
        "per_worker_batch": plan.per_worker_batch,
        "reference_batch": lr.reference_batch,
        "lr_base": lr.base,
        "lr_rule": lr.rule,
        "lr_peak": lr.peak,
        "lr_warmup_samples": lr.warmup_samples,
        "lr_decay": lr.decay,
        "lr_final": lr.final,
        "optimizer": spec.optimizer.name,
        "precision": spec.precision,
        "budget_samples": spec.budget_samples,
        "eval_every_samples": spec.eval_every_samples,
        **event["params"],
        "spec": event["spec"],
    }


def _reused_row(event: Event, of: Mapping[str, Any]) -> Row:
    measured = {"samples_seen", "updates", "train_seconds", "turnaround_s", "started_at", "ended_at"}
    return {
        **_values(event),
        **{name: value for name, value in of.items() if name not in measured},
        "trial": event["trial"],
        "number": event["number"],
        "status": "reused",
        "reused_from": event["of"],
        "repeat_of": None,
        "ended_at": _microseconds(event["t"]),
        **event["params"],
    }


def _add_evaluation(row: Row, event: Event, target: Target | None) -> None:
    for name in ("samples_seen", "updates", "train_seconds"):
        row[name] = event[name]
    value = event["metrics"].get(target.metric) if target else None
    if target and value is not None and row.get("samples_to_target") is None and target.reached(value):
        row["samples_to_target"] = event["samples_seen"]
        row["updates_to_target"] = event["updates"]
        row["seconds_to_target"] = event["train_seconds"]


def _ended_row(event: Event) -> Row:
    outcome = event.get("outcome") or {}
    noise = outcome.get("noise") or {}
    measured = ("samples_seen", "updates", "train_seconds", "skipped_updates", "peak_memory_bytes")
    return {
        "status": event["status"],
        "stopped_by": event.get("stopped_by"),
        "reason": event.get("reason") or None,
        "turnaround_s": event.get("turnaround_s"),
        "ended_at": _microseconds(event["t"]),
        **_values(event),
        **{name: outcome[name] for name in measured if name in outcome},
        "noise_scale": noise.get("value"),
        "noise_scale_low": noise.get("low"),
        "noise_scale_high": noise.get("high"),
    }


def _values(event: Event) -> Row:
    value = event.get("value")
    if event.get("status") in ("diverged", "failed"):
        return {"value": None, "value_2": None}
    first, second = value if isinstance(value, list | tuple) else (value, None)
    return {"value": first, "value_2": second}


def _table(rows: Iterable[Row], columns: tuple[tuple[str, pa.DataType], ...]) -> pa.Table:
    listed = list(rows)
    types = dict(columns)
    extra = sorted({name for row in listed for name in row} - types.keys())
    arrays = [pa.array([row.get(name) for row in listed], kind) for name, kind in columns]
    arrays += [_array([row.get(name) for row in listed]) for name in extra]
    return pa.table(arrays, names=[*types, *extra])


def _array(values: list[Any]) -> pa.Array:
    """A column of numbers, flags or texts; of texts if the kinds are mixed or have no column type."""
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, bool) for value in present):
        return pa.array(values, pa.bool_())
    if not any(isinstance(value, bool) for value in present):
        if present and all(isinstance(value, int) for value in present):
            return pa.array(values, pa.int64())
        if present and all(isinstance(value, int | float) for value in present):
            return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else text_of(value)


def _microseconds(at_s: float) -> int:
    return round(at_s * 1_000_000)
