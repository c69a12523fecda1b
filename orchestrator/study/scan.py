"""The scan method: short runs at several batches, in minutes, for a first look."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.report import scan_report
from orchestrator.study.branch_outcome import noise_of
from orchestrator.study.crew import Trained, by_name, left_out, train_all, trained_of
from orchestrator.study.experiment import Outcome, StudyMethod
from orchestrator.study.scan_plan import ScanPlan
from orchestrator.theory.scan import scan
from orchestrator.theory.scan_table import ScanRun

Plan = ScanPlan
carry_out = train_all
_INTERVALS = ("trend", "to_level", "relative", "relative_per_second", "noise_scale")


def method_of(plan: ScanPlan) -> StudyMethod:
    """How its results are made and shown."""
    return StudyMethod(
        name="scan",
        outcome=lambda events, done: outcome_of(plan, trained_of(events), done=bool(done)),
        metrics=metrics_of,
        table=lambda outcome: ("scan.parquet", scan_table(outcome)),
        figures=_figures,
        write=scan_report.write,
    )


def outcome_of(plan: ScanPlan, trials: Sequence[Trained], *, done: bool) -> dict[str, Any]:
    """The scan's part of the summary, with the key ``warnings``.

    Args:
        plan: the scan.
        trials: as the record tells them.
        done: whether it was carried out to its end.
    """
    known = by_name(trials)
    samples = {"spent": sum(one.samples for one in known.values()), "runs": len(trials)}
    base = {"method": "scan", "metric": plan.metric, "samples": samples}
    runs = [_run(plan, wanted.spec, one) for wanted in plan.runs() if (one := known.get(wanted.name)) is not None]
    if not done or not runs:
        reason = "the scan was cut before it ended; take it on with --resume"
        return {**base, "verdict": "unfinished", "sentence": reason, "sentences": [reason], "rows": [], "warnings": []}
    found = scan(runs, metric=plan.metric, mode=plan.mode)
    rest = found.to_dict()
    verdict = "compared" if any(row.to_level.value is not None for row in found.rows) else "not determined"
    return {**base, "verdict": verdict, "sentence": " ".join(found.sentences), **rest, "warnings": left_out(trials)}


def metrics_of(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of the scan's MLflow run, each at the step of its batch."""
    rungs = []
    for row in outcome["rows"]:
        values = {name: row[name] for name in ("at_equal_samples", "at_equal_updates", "samples_per_second")}
        values |= {name: row[name]["value"] for name in _INTERVALS}
        found = {f"scan/{name}": float(value) for name, value in values.items() if value is not None}
        rungs.append({"global_batch": row["global_batch"], "metrics": found})
    return {"by_batch": rungs} if rungs else {}


def scan_table(outcome: Mapping[str, Any]) -> pa.Table:
    """A row a batch, as the summary's ``rows``; intervals as columns of their own."""
    rows = []
    for row in outcome["rows"]:
        flat = {name: value for name, value in row.items() if name not in _INTERVALS}
        for name in _INTERVALS:
            flat |= {f"{name}{end}": row[name][key] for end, key in (("", "value"), ("_low", "low"), ("_high", "high"))}
        rows.append(flat)
    return pa.table({name: _column([row[name] for row in rows]) for name in rows[0]} if rows else {})


def _column(values: list[Any]) -> pa.Array:
    """Of its own type, or of numbers where nothing is known."""
    return pa.array(values, pa.float64()) if all(value is None for value in values) else pa.array(values)


def _run(plan: ScanPlan, spec: Any, one: Trained) -> ScanRun:
    evaluations = [e for e in one.evaluations if plan.metric in e["metrics"]]
    speeds = [speed for e in evaluations if (speed := e["metrics"].get("samples_per_second")) is not None]
    return ScanRun(
        global_batch=spec.plan.global_batch,
        lr=spec.lr.peak,
        seed=spec.seed,
        updates=spec.updates,
        samples=tuple(float(e["samples_seen"]) for e in evaluations),
        train_loss=tuple(float(e["metrics"].get("train/loss", math.nan)) for e in evaluations),
        metric=tuple(float(e["metrics"][plan.metric]) for e in evaluations),
        # The first windows of a run pay for what a process does only once.
        samples_per_second=float(np.median(speeds)) if speeds else None,
        noise_scale=noise_of(one.evaluations[-1]) if one.evaluations else noise_of({"metrics": {}}),
        diverged=one.status == "diverged",
    )


def _figures(outcome: Outcome, name: str, folder: Path) -> list[Path]:
    from orchestrator.report.scan_figures import write_scan_figures

    return write_scan_figures(outcome, name, folder)
