"""What a study tells: one plain value made from its record, for `summary.json`, tables, figures, console and MLflow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.study.lost import lost_batches, without
from orchestrator.study.noise import noise_at_target, noise_path
from orchestrator.study.planning import StudyPlanner
from orchestrator.study.protocol import Plan, Protocol
from orchestrator.study.settings import WRITTEN
from orchestrator.study.trials import BASELINE, StudyTrial, known_of
from orchestrator.study.words import sentence, warnings_of
from orchestrator.theory.critical_batch import CBS20, CRITICAL_BATCH, CriticalBatch, Estimate
from orchestrator.theory.ladder_planner import Verdict
from orchestrator.theory.ladder_summary import BatchResult, StudyResult, summarise

CURVE_POINTS = 40
PHASES = (BASELINE, "search", "settings", "final")
_LADDER_COLUMNS = (
    ("global_batch", pa.int64()),
    ("samples_to_target", pa.float64()),
    ("se_log", pa.float64()),
    ("low", pa.float64()),
    ("high", pa.float64()),
    ("updates_to_target", pa.float64()),
    ("seed_samples", pa.list_(pa.float64())),
    ("seeds", pa.int64()),
    ("lr", pa.float64()),
    ("best_lr", pa.float64()),
    ("best_lr_se_log", pa.float64()),
    ("excess", pa.float64()),
    ("tried_lrs", pa.int64()),
    ("fitted", pa.float64()),
    ("fitted_low", pa.float64()),
    ("fitted_high", pa.float64()),
    ("noise_scale", pa.float64()),
    ("noise_scale_low", pa.float64()),
    ("noise_scale_high", pa.float64()),
    ("bounded", pa.string()),
    ("left_out", pa.bool_()),
    ("reason", pa.string()),
)
UNFINISHED = Verdict(kind="unfinished", reason="the study was cut before it knew enough; take it on with --resume")


def outcome_of(protocol: Protocol, trials: Sequence[StudyTrial], verdict: Verdict | None) -> dict[str, Any]:
    """The study's part of the summary, with the key ``warnings``.

    Args:
        protocol: the study.
        trials: as the record tells them.
        verdict: why it is over; None if it was cut.
    """
    verdict = verdict or UNFINISHED
    plan = _plan(protocol, trials)
    known = {
        "method": "ladder",
        "verdict": verdict.kind,
        "reason": verdict.reason,
        "samples": _samples(protocol, trials),
    }
    if plan is None:
        return {**known, **_nothing(verdict)}
    lost = lost_batches(trials, plan.goal)
    if not set(plan.config.batches) - set(lost):
        return {**known, **_nothing(Verdict(kind="failed", reason="; ".join(lost.values())))}
    config = without(plan.config, lost, trials)
    planner = StudyPlanner(config=config, count=len(protocol.settings))
    known_results = [one for one in known_of(trials, plan.goal) if one.result.run.global_batch not in lost]
    chosen = planner.chosen(known_results)
    found = summarise(config, planner.view(known_results))
    failed = [BatchResult(global_batch=batch, reason=f"not trained: {reason}") for batch, reason in lost.items()]
    found = dataclasses.replace(
        found, batches=tuple(sorted([*found.batches, *failed], key=lambda one: one.global_batch))
    )
    critical, optimizer = found.critical, protocol.spec.optimizer.name
    noise = {one.global_batch: noise_at_target(trials, one) for one in found.batches}
    headline = _headline(found, plan)
    return {
        **known,
        "sentence": sentence(critical, verdict),
        "target": {**dataclasses.asdict(plan.goal), "given": protocol.goal is not None},
        "chosen": list(plan.notes),
        "critical_batch": {
            **_interval(Estimate(value=critical.critical_batch, low=critical.low, high=critical.high)),
            "definition": CRITICAL_BATCH,
            "verdict": critical.verdict,
            "reason": critical.reason,
        },
        "cbs20": {**_interval(critical.cbs20), "definition": CBS20},
        "emin": {**_interval(critical.emin), "unit": "samples"},
        "smin": {**_interval(critical.smin), "unit": "updates"},
        "confidence": critical.confidence,
        "ladder": [
            {
                **_rung(one, critical, noise[one.global_batch]),
                "settings": dict(protocol.settings[chosen.get(one.global_batch, WRITTEN)]),
            }
            for one in found.batches
        ],
        "lr_exponent": {**found.exponent.to_dict(), "optimizer": optimizer},
        "noise_scale": _noise(None if headline is None else noise[headline], headline, critical, trials, found),
        "fit": {**critical.to_dict(), "curve": _curve(critical, config.batches)},
        "warnings": [
            *(f"batch {batch} is left out: {reason}" for batch, reason in lost.items()),
            *warnings_of(found, optimizer),
        ],
    }


def metrics_of(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of the study's MLflow run: ``metrics`` at ``samples_seen``, ``by_batch`` at the step of each batch."""
    if not outcome["ladder"]:
        return {}
    metrics: dict[str, float] = {}
    for name in ("critical_batch", "cbs20", "emin", "smin", "noise_scale"):
        for end, suffix in (("value", ""), ("low", "_low"), ("high", "_high")):
            if (number := (outcome[name] or {}).get(end)) is not None:
                metrics[f"study/{name}{suffix}"] = number
    for end, suffix in (("alpha", ""), ("low", "_low"), ("high", "_high")):
        if (number := outcome["lr_exponent"].get(end)) is not None:
            metrics[f"study/lr_exponent{suffix}"] = number
    rungs = []
    for rung in outcome["ladder"]:
        names = ("samples_to_target", "updates_to_target", "lr", "best_lr", "seeds")
        found = {f"ladder/{name}": float(rung[name]) for name in names if rung[name] is not None}
        rungs.append({"global_batch": rung["global_batch"], "metrics": found})
    return {"metrics": metrics, "by_batch": rungs, "samples_seen": outcome["samples"]["spent"]}


def ladder_table(outcome: Mapping[str, Any]) -> pa.Table:
    """A row a batch, as the summary's ``ladder``; noise scale and fitted samples with their intervals as columns."""
    columns: dict[str, list[Any]] = {name: [] for name, _ in _LADDER_COLUMNS}
    for rung in outcome.get("ladder", []):
        flat = dict(rung)
        for name in ("noise_scale", "fitted"):
            part = flat.pop(name) or {}
            flat |= {name: part.get("value"), f"{name}_low": part.get("low"), f"{name}_high": part.get("high")}
        for name, column in columns.items():
            column.append(flat[name])
    return pa.table({name: pa.array(columns[name], kind) for name, kind in _LADDER_COLUMNS})


def _plan(protocol: Protocol, trials: Sequence[StudyTrial]) -> Plan | None:
    baseline = [one for one in trials if one.phase == BASELINE and one.status != "failed"]
    if protocol.baseline([]) is not None and (not baseline or baseline[-1].status == "running"):
        return None
    plan = protocol.plan(baseline)
    return None if isinstance(plan, str) else plan


def _nothing(verdict: Verdict) -> dict[str, Any]:
    """The keys of a study that never came to plan anything."""
    blank = {**_interval(Estimate()), "reason": f"not determined: {verdict.reason}"}
    return {
        "sentence": f"The critical batch is not determined: {verdict.reason}",
        "target": None,
        "chosen": [],
        **dict.fromkeys(("critical_batch", "cbs20", "emin", "smin", "noise_scale"), blank),
        "ladder": [],
        "lr_exponent": {"alpha": None, "low": None, "high": None, "reason": blank["reason"]},
        "fit": None,
        "warnings": [],
    }


def _samples(protocol: Protocol, trials: Sequence[StudyTrial]) -> dict[str, Any]:
    spent = {phase: sum(t.samples for t in trials if t.phase == phase) for phase in PHASES}
    return {"spent": sum(spent.values()), **spent, "most": protocol.total_samples, "runs": len(trials)}


def _headline(found: StudyResult, plan: Plan) -> int | None:
    """The batch whose noise scale stands beside the critical batch: the nearest to it that was measured."""
    centre = found.critical.critical_batch or float(plan.config.reference_batch)
    measured = [one.global_batch for one in found.batches if one.crossing and one.crossing.samples]
    return min(measured, key=lambda batch: abs(math.log(batch / centre)), default=None)


def _rung(one: BatchResult, critical: CriticalBatch, noise: Mapping[str, Any] | None) -> dict[str, Any]:
    crossing = one.crossing
    samples = crossing.samples if crossing is not None else None
    return {
        "global_batch": one.global_batch,
        "lr": one.lr,
        "best_lr": one.best_lr,
        "best_lr_se_log": one.se_log_lr,
        "excess": one.excess,
        "samples_to_target": samples,
        "se_log": crossing.se_log if crossing is not None else None,
        "low": crossing.low if crossing is not None else None,
        "high": crossing.high if crossing is not None else None,
        "updates_to_target": samples / one.global_batch if samples is not None else None,
        "seed_samples": list(crossing.seed_samples) if crossing is not None else [],
        "seeds": one.seeds,
        "tried_lrs": one.tried,
        "fitted": _interval(critical.predict(one.global_batch)),
        "noise_scale": noise,
        "bounded": one.bounded,
        "left_out": one.left_out,
        "reason": one.reason,
    }


def _noise(
    noise: Mapping[str, Any] | None,
    batch: int | None,
    critical: CriticalBatch,
    trials: Sequence[StudyTrial],
    found: StudyResult,
) -> dict[str, Any]:
    """The noise scale at the target, its ratio to the critical batch, and how it got there."""
    if noise is None or batch is None:
        reason = (
            "not determined: no run reached the target, or |G|^2 is not clearly above 0 there, or every worker has the "
            "whole batch"
        )
        return {"value": None, "low": None, "high": None, "reason": reason}
    value, bound = noise["value"], critical.critical_batch
    (rung,) = [one for one in found.batches if one.global_batch == batch]
    return {
        **noise,
        "global_batch": batch,
        "where": "at the target, over the last tenth of the updates before it",
        "ratio_to_critical_batch": value / bound if bound else None,
        "along_training": noise_path(trials, rung),
        "reason": "",
    }


def _curve(critical: CriticalBatch, batches: Sequence[int]) -> list[dict[str, Any]]:
    """The fitted curve with its band, within the ladder."""
    grid = [float(batch) for batch in np.geomspace(min(batches), max(batches), CURVE_POINTS)]
    return [{"global_batch": batch, **_interval(critical.predict(batch))} for batch in grid]


def _interval(found: Estimate) -> dict[str, float | None]:
    return {"value": found.value, "low": found.low, "high": found.high}
