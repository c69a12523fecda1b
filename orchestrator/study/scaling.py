"""The scaling method: is quality held within seed noise where the global batch grows with the workers?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.report import scaling_report
from orchestrator.study.crew import Trained, by_name, left_out, train_all, trained_of
from orchestrator.study.experiment import Outcome, StudyMethod
from orchestrator.study.scaling_plan import ScalingPlan
from orchestrator.study.scaling_words import sentences
from orchestrator.theory.scaling import Arm, Comparison, ScalingCheck, scaling_check

Plan = ScalingPlan
carry_out = train_all
_COLUMNS = (
    ("workers", pa.int64()),
    ("global_batch", pa.int64()),
    ("lr", pa.float64()),
    ("seeds", pa.int64()),
    ("diverged", pa.int64()),
    ("mean", pa.float64()),
    ("sd", pa.float64()),
    *((f"{name}{end}", pa.float64()) for name in ("lost", "beyond") for end in ("", "_low", "_high")),
    ("verdict", pa.string()),
    ("scatter", pa.float64()),
    ("seeds_needed", pa.int64()),
)


def method_of(plan: ScalingPlan) -> StudyMethod:
    """How its results are made and shown."""
    return StudyMethod(
        name="scaling",
        outcome=lambda events, done: outcome_of(plan, trained_of(events), done=bool(done)),
        metrics=metrics_of,
        table=lambda outcome: ("scaling.parquet", scaling_table(outcome)),
        figures=_figures,
        write=scaling_report.write,
    )


def outcome_of(plan: ScalingPlan, trials: Sequence[Trained], *, done: bool) -> dict[str, Any]:
    """The check's part of the summary, with the key ``warnings``.

    Args:
        plan: the check.
        trials: as the record tells them.
        done: whether it was carried out to its end.
    """
    known = by_name(trials)
    samples = {"spent": sum(one.samples for one in known.values()), "runs": len(trials)}
    base = {"method": "scaling", "metric": plan.metric, "mode": plan.mode, "samples": samples}
    whole = [workers for workers in plan.workers if all(name in known for name in plan.arm(workers))]
    missing = left_out(trials)
    if not done:
        reason = "the check was cut before it ended; take it on with --resume"
        return {**base, "verdict": "unfinished", "sentence": reason, "sentences": [reason], "rows": [], "warnings": []}
    if len(whole) < 2 or whole[0] != plan.workers[0]:
        reason = "the check is not determined: runs of the worker counts that are compared could not be trained"
        nothing = {"verdict": "not determined", "sentence": reason, "sentences": [reason], "rows": []}
        return {**base, **nothing, "warnings": missing}
    arms = [_arm(plan, workers, known) for workers in whole]
    tolerance = plan.spec.study.scaling.tolerance
    check = scaling_check(arms, mode=plan.mode, tolerance=tolerance)
    told = sentences(check, metric=plan.metric, rule=plan.spec.lr.rule, given=tolerance is not None)
    lrs = {run.spec.plan.global_batch: run.spec.lr.peak for run in plan.runs()}
    return {
        **base,
        "verdict": check.rows[-1].verdict,
        "sentence": " ".join(told),
        "sentences": told,
        "broken": broken(check),
        "holds_up_to_workers": check.holds_up_to,
        "equal_samples": plan.spec.budget.samples,
        "per_worker_batch": plan.per_worker_batch,
        "seeds": check.seeds,
        "tolerance": dataclasses.asdict(check.tolerance) | {"given": tolerance is not None},
        "confidence": check.confidence,
        "rows": [_base_row(check, lrs), *(_row(row, lrs) for row in check.rows)],
        "warnings": [*missing, *_warnings(plan, known)],
    }


def broken(check: ScalingCheck) -> str:
    """Why the check did not hold, for people; empty where it did, or where that is not told."""
    lost = [row.arm.workers for row in check.rows if row.verdict in ("lost", "diverged")]
    if not lost:
        return ""
    told = ", ".join(map(str, lost))
    return f"quality is lost with the global batch of {told} workers, after equally many samples"


def metrics_of(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of the check's MLflow run, each at the step of its batch."""
    rungs = []
    for row in outcome["rows"]:
        values = {"value": row["mean"], "value_sd": row["sd"]}
        values |= {f"lost{end}": row["lost"][key] for end, key in _ENDS}
        found = {f"scaling/{name}": float(value) for name, value in values.items() if value is not None}
        found["scaling/diverged"] = float(row["diverged"])
        rungs.append({"global_batch": row["global_batch"], "metrics": found})
    if not rungs:
        return {}
    whole = {"scaling/holds_up_to_workers": outcome["holds_up_to_workers"]}
    whole |= {f"scaling/tolerance{end}": outcome["tolerance"][key] for end, key in _ENDS}
    return {"metrics": {name: float(v) for name, v in whole.items() if v is not None}, "by_batch": rungs}


_ENDS = (("", "value"), ("_low", "low"), ("_high", "high"))


def scaling_table(outcome: Mapping[str, Any]) -> pa.Table:
    """A row a worker count, as the summary's ``rows``; intervals as columns of their own."""
    rows = []
    for row in outcome["rows"]:
        ends = {f"{name}{end}": row[name][key] for name in ("lost", "beyond") for end, key in _ENDS}
        rows.append({**row, **ends})
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in _COLUMNS})


def _arm(plan: ScalingPlan, workers: int, known: Mapping[str, Trained]) -> Arm:
    values = tuple(_final(known[name], plan.metric) for name in plan.arm(workers))
    return Arm(workers=workers, global_batch=workers * plan.per_worker_batch, values=values)


def _final(one: Trained, metric: str) -> float:
    """The metric at the budget; not a number where the run did not get there."""
    if one.status == "diverged" or not one.evaluations:
        return math.nan
    return float(one.evaluations[-1]["metrics"].get(metric, math.nan))


def _base_row(check: ScalingCheck, lrs: Mapping[int, float]) -> dict[str, Any]:
    nothing = {"value": None, "low": None, "high": None}
    return {**_of_arm(check.base, lrs), "lost": nothing, "beyond": nothing, **_told("base")}


def _row(row: Comparison, lrs: Mapping[int, float]) -> dict[str, Any]:
    estimates = {"lost": dataclasses.asdict(row.lost), "beyond": dataclasses.asdict(row.beyond)}
    return {**_of_arm(row.arm, lrs), **estimates, **_told(row.verdict, row.scatter, row.seeds_needed)}


def _told(verdict: str, scatter: float | None = None, seeds_needed: int | None = None) -> dict[str, Any]:
    return {"verdict": verdict, "scatter": scatter, "seeds_needed": seeds_needed}


def _of_arm(arm: Arm, lrs: Mapping[int, float]) -> dict[str, Any]:
    return {
        "workers": arm.workers,
        "global_batch": arm.global_batch,
        "lr": lrs[arm.global_batch],
        "seeds": len(arm.values),
        "diverged": arm.diverged,
        "values": list(arm.values),
        "mean": None if arm.diverged else float(np.mean(arm.values)),
        "sd": None if arm.diverged else float(np.std(arm.values, ddof=1)),
    }


def _warnings(plan: ScalingPlan, known: Mapping[str, Trained]) -> list[str]:
    """A model whose training depends on the split is not what so many workers would train to the bit."""
    notes = {note for one in known.values() for note in one.outcome.get("notes", ())}
    gang = plan.spec.cluster.workers
    return [
        f"{note}; {gang} workers trained every batch here, so that other worker counts may differ from what is shown"
        for note in sorted(notes)
        if note.startswith("statistically equal") and set(plan.workers) != {gang}
    ]


def _figures(outcome: Outcome, name: str, folder: Path) -> list[Path]:
    from orchestrator.report.scaling_figures import write_scaling_figures

    return write_scaling_figures(outcome, name, folder)
