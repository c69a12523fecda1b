"""What a study by branches tells: one plain value made from its record, for everything that shows it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.report import formats
from orchestrator.study.branch_plan import PARENT, BranchPlan
from orchestrator.study.crew import Trained, by_name, left_out
from orchestrator.theory.branch_rate import Branch
from orchestrator.theory.branching import LocalCriticalBatch, local_critical_batch
from orchestrator.theory.critical_batch import Estimate
from orchestrator.theory.tolerance_batch import ToleranceBatch, closed_form, tolerance_batch

CURVE_POINTS = 40
_COLUMNS = (
    ("checkpoint_samples", pa.int64()),
    ("global_batch", pa.int64()),
    ("seeds", pa.int64()),
    ("lr", pa.float64()),
    ("rate", pa.float64()),
    ("rate_se", pa.float64()),
    ("fitted_rate", pa.float64()),
    ("final_loss", pa.float64()),
    ("above_smallest", pa.float64()),
    ("above_se", pa.float64()),
    ("diverged", pa.bool_()),
)


def outcome_of(plan: BranchPlan, trials: Sequence[Trained], *, done: bool) -> dict[str, Any]:
    """The study's part of the summary, with the key ``warnings``.

    Args:
        plan: the study.
        trials: as the record tells them.
        done: whether it was carried out to its end.
    """
    known = by_name(trials)
    parent = known.get(PARENT)
    branches = [one for one in known.values() if _mark(one) is not None]
    begun = sum(max(0, one.samples - (_mark(one) or 0)) for one in branches)
    spent = {"parent": parent.samples if parent else 0, "branches": begun}
    base = {"method": "branch", "samples": {"spent": sum(spent.values()), **spent, "runs": len(trials)}}
    if not done or parent is None:
        reason = "the study was cut before it knew enough; take it on with --resume"
        return {
            **base,
            "verdict": "unfinished",
            "reason": reason,
            "sentence": reason,
            "checkpoints": [],
            "warnings": [],
        }
    if parent.status == "diverged":
        reason = f"the run that is branched from diverged: {parent.outcome['reason']}. Lower lr.base"
        return {**base, "verdict": "diverged", "reason": reason, "sentence": reason, "checkpoints": [], "warnings": []}
    found = [_checkpoint(plan, mark, parent, [one for one in branches if _mark(one) == mark]) for mark in plan.marks]
    told = [one for one in found if one["local_critical_batch"]["local_critical_batch"] is not None]
    return {
        **base,
        "verdict": "determined" if told else "not determined",
        "reason": "" if told else _most_telling(found)["local_critical_batch"]["reason"],
        "sentence": _sentence(found, told),
        "metric": plan.metric,
        "length_samples": plan.length_samples,
        "tolerance": plan.spec.study.branch.tolerance,
        "checkpoints": found,
        "growth": growth(told),
        "along_training": noise_along(parent),
        "warnings": left_out(trials)
        + [
            f"after {one['samples_seen']:,} samples: {text}"
            for one in found
            for text in one["local_critical_batch"]["warnings"]
        ],
    }


def noise_of(evaluation: Mapping[str, Any]) -> Estimate:
    """The noise scale of the updates before an evaluation; empty where it is not determined."""
    metrics = evaluation["metrics"]
    value, low, high = (metrics.get(f"noise_scale{end}") for end in ("", "_low", "_high"))
    return Estimate(value=value, low=low, high=high)


def noise_along(trial: Trained) -> list[dict[str, Any]]:
    """The noise scale at each evaluation of a run that could tell it."""
    return [
        {"samples_seen": one["samples_seen"], **_interval(noise)}
        for one in trial.evaluations
        if (noise := noise_of(one)).value is not None
    ]


def growth(told: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The last local critical batch over the first, with its interval; None with fewer than two."""
    if len(told) < 2:
        return None
    ends = [one["local_critical_batch"] for one in (told[0], told[-1])]
    logs = [math.log(end["local_critical_batch"]) for end in ends]
    reach = math.hypot(*(0.5 * math.log(end["high"] / end["low"]) for end in ends))
    ratio = logs[1] - logs[0]
    return {
        "factor": math.exp(ratio),
        "low": math.exp(ratio - reach),
        "high": math.exp(ratio + reach),
        "from_samples": told[0]["samples_seen"],
        "to_samples": told[-1]["samples_seen"],
    }


def metrics_of(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of the study's MLflow run, those of a checkpoint at its samples seen."""
    points = []
    for one in outcome["checkpoints"]:
        local, tolerance = one["local_critical_batch"], one["tolerance_batch"]
        values = {
            "local_critical_batch": local["local_critical_batch"],
            "local_critical_batch_low": local["low"],
            "local_critical_batch_high": local["high"],
            "one_step_critical_batch": local["one_step"]["value"],
            "tolerance_batch": tolerance["tolerance_batch"],
            "noise_scale": one["noise_scale"]["value"],
        }
        found = {f"branch/{name}": float(value) for name, value in values.items() if value is not None}
        points.append({"samples_seen": one["samples_seen"], "metrics": found})
    return {"by_samples": points} if points else {}


def branches_table(outcome: Mapping[str, Any]) -> pa.Table:
    """A row for each batch at each checkpoint."""
    rows = [
        {"checkpoint_samples": one["samples_seen"], **row} for one in outcome["checkpoints"] for row in one["batches"]
    ]
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in _COLUMNS})


def _mark(one: Trained) -> int | None:
    """Samples seen at the checkpoint that a trial began with; None if it began with none."""
    start = one.spec.get("start")
    return None if start is None else int(start["samples_seen"])


def _batch(one: Trained) -> int:
    return int(one.spec["plan"]["global_batch"])


def _checkpoint(plan: BranchPlan, mark: int, parent: Trained, trained: Sequence[Trained]) -> dict[str, Any]:
    section = plan.spec.study.branch
    (at,) = [one for one in parent.evaluations if one["samples_seen"] == mark]
    branches = [_branch(plan, mark, one) for one in trained]
    local = local_critical_batch(branches, floor=section.floor)
    tolerance = tolerance_batch(
        branches, tolerance=section.tolerance, length_samples=plan.length_samples, floor=section.floor
    )
    batches = [rate.global_batch for rate in local.rates]
    return {
        "samples_seen": mark,
        "loss": at["metrics"].get(plan.metric),
        "lr": at["metrics"].get("lr"),
        "noise_scale": _interval(noise_of(at)),
        "local_critical_batch": local.to_dict(),
        "tolerance_batch": {**tolerance.to_dict(), "expected": _expected(plan, local, at, batches)},
        "batches": _rows(local, tolerance, trained),
        "curve": _curve(local, batches),
    }


def _branch(plan: BranchPlan, mark: int, one: Trained) -> Branch:
    """What a branch tells; one whose metric is not finite where it begins or ends has diverged, whatever its loss."""
    points = [(e["samples_seen"] - mark, e["metrics"].get(plan.metric)) for e in one.evaluations]
    if one.status == "diverged" or not points or points[0][1] is None or points[-1][1] is None:
        points = []
    known = [(float(samples), value) for samples, value in points if value is not None]
    samples, losses = zip(*known, strict=True) if known else ((), ())
    return Branch(global_batch=_batch(one), seed=int(one.spec["seed"]), samples=samples, losses=losses)


def _expected(
    plan: BranchPlan, local: LocalCriticalBatch, at: Mapping[str, Any], batches: Sequence[int]
) -> float | None:
    """The tolerance batch that the fitted rates give, where the floor is known."""
    section, loss = plan.spec.study.branch, at["metrics"].get(plan.metric)
    if section.floor is None or local.local_critical_batch is None or local.rate0.value is None or loss is None:
        return None
    found = closed_form(
        rate0=local.rate0.value,
        critical_batch=local.local_critical_batch,
        excess_loss=loss - section.floor,
        tolerance=section.tolerance,
        length_samples=plan.length_samples,
        smallest_batch=min(batches),
    )
    return found if math.isfinite(found) else None


def _rows(local: LocalCriticalBatch, tolerance: ToleranceBatch, trained: Sequence[Trained]) -> list[dict[str, Any]]:
    final = {one.global_batch: one for one in tolerance.losses}
    rows = []
    for rate in local.rates:
        end = final[rate.global_batch]
        evaluations = next((one.evaluations for one in trained if _batch(one) == rate.global_batch), [])
        rows.append(
            {
                "global_batch": rate.global_batch,
                "seeds": rate.seeds,
                "lr": evaluations[-1]["metrics"].get("lr") if evaluations else None,
                "rate": rate.rate,
                "rate_se": rate.se,
                "fitted_rate": local.predict(rate.global_batch).value,
                "final_loss": end.loss,
                "above_smallest": end.above,
                "above_se": end.above_se,
                "diverged": end.loss is None,
            }
        )
    return rows


def _curve(local: LocalCriticalBatch, batches: Sequence[int]) -> list[dict[str, Any]]:
    grid = [float(batch) for batch in np.geomspace(min(batches), max(batches), CURVE_POINTS)] if batches else []
    points = [{"global_batch": batch, **_interval(local.predict(batch))} for batch in grid]
    return [point for point in points if point["value"] is not None]


def _most_telling(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The last checkpoint whose branches set a bound, else the last one."""
    bounds = [one for one in found if any(one["local_critical_batch"][end] is not None for end in ("low", "high"))]
    return (bounds or list(found))[-1]


def _sentence(found: Sequence[Mapping[str, Any]], told: Sequence[Mapping[str, Any]]) -> str:
    if not told:
        one = _most_telling(found)
        return (
            f"After {one['samples_seen']:,} samples the local critical batch is {one['local_critical_batch']['reason']}"
        )
    last = told[-1]
    local, tolerance = last["local_critical_batch"], last["tolerance_batch"]
    text = (
        f"After {last['samples_seen']:,} samples the loss falls half as fast per sample at batch "
        f"{formats.count(local['local_critical_batch'])} ({formats.count(local['low'])} to "
        f"{formats.count(local['high'])} at {100 * local['confidence']:g} %) as at a small one"
    )
    if tolerance["tolerance_batch"] is not None:
        least = "at least " if tolerance["all_within"] else ""
        text += (
            f"; {least}batch {tolerance['tolerance_batch']} ends within {tolerance['tolerance']:g} of the smallest "
            f"after {formats.count(tolerance['length_samples'])} samples"
        )
    grown = growth(told)
    if grown is None:
        return f"{text}."
    clear = grown["low"] > 1.0 or grown["high"] < 1.0
    verb = ("grew" if grown["factor"] > 1.0 else "shrank") if clear else "did not clearly change"
    return (
        f"{text}. From {grown['from_samples']:,} to {grown['to_samples']:,} samples it {verb}: x{grown['factor']:.2g} "
        f"({grown['low']:.2g} to {grown['high']:.2g})."
    )


def _interval(found: Estimate) -> dict[str, float | None]:
    return {"value": found.value, "low": found.low, "high": found.high}
