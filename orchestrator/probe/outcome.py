"""What a probe tells: one plain value made from its record, for `summary.json`, tables, figures, console and MLflow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from orchestrator.probe import speed
from orchestrator.probe.plan import ProbePlan
from orchestrator.probe.record import DEVICE, DONE, FOUND, PREDICTED, TRIED, last_of
from orchestrator.theory.limits import Roofline
from orchestrator.theory.throughput import StepTimeModel

_ENDS = ("value", "low", "high")


def outcome_of(plan: ProbePlan, events: Sequence[Mapping[str, Any]], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The probe's part of the summary, with the key ``warnings``.

    Args:
        plan: the probe.
        events: its record.
        extra: what is said beside the measurements: ``recommendation``, ``compared``; empty if the probe was cut.
    """
    timed = speed.timed_of(events)
    device, predicted = last_of(events, DEVICE), last_of(events, PREDICTED)
    model = speed.fitted(timed) if timed else "nothing was timed"
    roofline = Roofline(**device["roofline"]) if device and device.get("roofline") else None
    work = {int(m): w for m, w in (predicted or {}).get("work", {}).items()}
    memory = _memory(predicted, events)
    found = {
        "kind": "probe",
        "verdict": "measured" if last_of(events, DONE) else "unfinished",
        "device": device
        and {name: device[name] for name in ("device", "free_bytes", "total_bytes", "nodes", "roofline")},
        "memory": memory,
        "timings": speed.rows(timed),
        "knees": speed.knees(timed),
        "scaling": speed.scaling(timed),
        "accumulation": speed.accumulation(timed),
        "step_time": _model(model),
        "limits": speed.limits(timed, model, work, roofline) if isinstance(model, StepTimeModel) else [],
        "savers": list(_savers(predicted, events, timed)),
        "recommendation": extra.get("recommendation"),
        "compared": extra.get("compared"),
    }
    return {**found, "sentences": list(_sentences(found, extra)), "warnings": list(_warnings(found, predicted, timed))}


def metrics_of(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of the probe's MLflow run: of accumulation 1 at the step of each micro batch, by number of workers."""
    metrics: dict[str, float] = {}
    for knees in outcome["knees"]:
        if not knees["reason"]:
            for name in ("doubling", "ceiling"):
                if (value := knees[name]["value"]) is not None:
                    metrics[f"probe/{name}_knee/{knees['world_size']}_workers"] = value
    memory = outcome["memory"]
    for name in ("micro_batch", "fixed_bytes", "per_sample_bytes"):
        if (value := memory.get(name)) is not None:
            metrics[f"probe/memory/{name}"] = float(value)
    rungs = []
    for row in outcome["timings"]:
        if row["accumulation"] == 1:
            tail = f"/{row['world_size']}_workers"
            found = {
                f"probe/samples_per_second{tail}": row["samples_per_second"]["value"],
                f"probe/step_ms{tail}": 1e3 * row["step_s"]["value"],
            }
            rungs.append({"global_batch": row["micro_batch"], "metrics": found})
    rungs += [
        {"global_batch": use["micro_batch"], "metrics": {"probe/predicted_peak_bytes": float(use["peak_bytes"])}}
        for use in memory["predicted"]
    ]
    return {"metrics": metrics, "by_batch": rungs} if metrics or rungs else {}


def tables_of(outcome: Mapping[str, Any]) -> dict[str, pa.Table]:
    """``timings.parquet``, a row a geometry, and ``memory.parquet``, a row a micro batch that was predicted."""
    timings = []
    for row in outcome["timings"]:
        flat = {k: v for k, v in row.items() if k not in ("step_s", "samples_per_second", "shares")}
        for name in ("step_s", "samples_per_second"):
            flat |= {name if end == "value" else f"{name}_{end}": row[name][end] for end in _ENDS}
        timings.append(flat | {f"{name}_share": share for name, share in row["shares"].items()})
    memory = [
        {name: use[name] for name in use if name != "activations"} | {"activations": sum(use["activations"].values())}
        for use in outcome["memory"]["predicted"]
    ]
    return {f"{name}.parquet": _table(found) for name, found in (("timings", timings), ("memory", memory))}


def _table(found: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = list(found[0]) if found else []
    columns = {name: [row[name] for row in found] for name in names}
    kinds = {
        name: pa.float64() if any(isinstance(v, float) or v is None for v in column) else pa.int64()
        for name, column in columns.items()
    }
    return pa.table({name: pa.array(column, kinds[name]) for name, column in columns.items()})


def _memory(predicted: Mapping[str, Any] | None, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The largest micro batch, measured where it was, and what is known of memory."""
    base: dict[str, Any] = {"micro_batch": None, "how": "", "reason": "", "predicted": [], "tries": [], "remedies": []}
    if predicted is not None:
        base["reason"] = predicted["reason"]
        base |= {name: predicted["asked"][name] for name in ("device_bytes", "margin")}
        if not predicted["reason"]:
            base |= {"micro_batch": predicted["micro_batch"], "how": "predicted", "capped": predicted["capped"]}
            base |= {name: predicted["model"][name] for name in ("fixed_bytes", "per_sample_bytes", "worst_error")}
            base |= {name: predicted[name] for name in ("grows", "accumulation", "remedies")}
            base["predicted"] = [_use(use) for use in predicted["uses"]]
    for event in events:
        if event["event"] == TRIED:
            fits = all(sight["fits"] for sight in event["sights"])
            peak = max(sight["peak_bytes"] for sight in event["sights"])
            base["tries"].append({**event["asked"], "fits": fits, "peak_bytes": peak})
    found = last_of(events, FOUND)
    if found is not None:
        base |= {"micro_batch": found["micro_batch"], "how": "measured", "measured": found}
    return base


def _use(use: Mapping[str, Any]) -> dict[str, Any]:
    return {"micro_batch": use["plan"]["micro_batch"], **{k: v for k, v in use.items() if k != "plan"}}


def _model(model: StepTimeModel | str) -> dict[str, Any]:
    if isinstance(model, str):
        return {"reason": model}
    names = ("parameters", "free", "timings", "sd_log", "median_error", "confidence")
    return {"reason": "", **{name: getattr(model, name) for name in names}}


def _savers(
    predicted: Mapping[str, Any] | None, events: Sequence[Mapping[str, Any]], timed: Mapping[Any, speed.Timed]
) -> Iterator[dict[str, Any]]:
    """What saves memory: bytes at the largest micro batch predicted, and time at the largest that was timed."""
    if predicted is None or predicted["reason"]:
        return
    plain = predicted["uses"][-1]
    for name, saver in predicted["savers"].items():
        found = speed.timed_of(events, name)
        at, time = None, None
        for geometry, one in found.items():
            if geometry in timed:
                at, time = geometry.micro_batch, dataclasses.asdict(speed.compared(one, timed[geometry]))
        yield {
            "name": name,
            "micro_batch": plain["plan"]["micro_batch"],
            "peak_bytes": saver["use"]["peak_bytes"],
            "frees_bytes": plain["peak_bytes"] - saver["use"]["peak_bytes"],
            "timed_at": at,
            "time": time,
        }


def _sentences(found: Mapping[str, Any], extra: Mapping[str, Any]) -> Iterator[str]:
    if found["verdict"] == "unfinished":
        yield "the probe was cut before it ended; take it on with --resume"
        return
    memory = found["memory"]
    if memory["micro_batch"]:
        what = (
            "the data end before memory does"
            if memory.get("capped") and memory["how"] == "predicted"
            else memory["how"]
        )
        yield f"Largest micro batch that fits: {memory['micro_batch']} ({what})."
    elif memory["how"]:
        yield "Not even one sample fits in the memory that was given."
    for knees in found["knees"]:
        if not knees["reason"]:
            workers = f"{knees['world_size']} worker{'s' * (knees['world_size'] > 1)}"
            yield (
                f"On {workers}, doubling the micro batch gains under 30 % from {_knee(knees['doubling'])}, and speed "
                f"is within 10 % of its ceiling from {_knee(knees['ceiling'])}."
            )
    if found["limits"]:
        last = [one for one in found["limits"] if one["world_size"] == 1][-1]
        yield f"At micro batch {last['micro_batch']}, {last['answer']}."
    yield from extra.get("sentences", ())


def _knee(knee: Mapping[str, Any]) -> str:
    if knee["value"] is None:
        return (
            f"a batch {knee['reason']}" if not knee["reason"].startswith("not determined") else "a batch not determined"
        )
    ends = [f"{knee[end]:.0f}" if knee[end] is not None else "?" for end in ("low", "high")]
    return f"{knee['value']:.0f} ({ends[0]} to {ends[1]})"


def _warnings(
    found: Mapping[str, Any], predicted: Mapping[str, Any] | None, timed: Mapping[Any, speed.Timed]
) -> Iterator[str]:
    memory = found["memory"]
    if memory["reason"]:
        yield f"memory was not predicted: {memory['reason']}"
    if predicted and not predicted["reason"]:
        if predicted["accumulation"]:
            yield predicted["accumulation"]
        if predicted["unsure"]:
            yield f"memory: {predicted['unsure']}"
    yield from speed.fall(timed)
