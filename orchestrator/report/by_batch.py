"""The sweep's main table: for each global batch, how its trials went and which of them was best."""

from __future__ import annotations

from collections import Counter
from typing import Any

from orchestrator.report.history import SweepHistory, TrialHistory
from orchestrator.report.objective import Objective


def by_batch(history: SweepHistory, objective: Objective) -> list[dict[str, Any]]:
    """One record a global batch that the search tried, ascending; fields of its best trial are None without one."""
    groups: dict[int, list[TrialHistory]] = {}
    for trial in history.searched:
        groups.setdefault(trial.global_batch, []).append(trial)
    return [_record(batch, groups[batch], objective) for batch in sorted(groups)]


def _record(global_batch: int, trials: list[TrialHistory], objective: Objective) -> dict[str, Any]:
    ranked = objective.ranked(trials)
    statuses = Counter(trial.status for trial in trials)
    return {
        "global_batch": global_batch,
        "trials": len(trials),
        "finished": sum(trial.finished for trial in trials),
        "stopped": statuses["stopped"],
        "diverged": statuses["diverged"],
        "failed": statuses["failed"],
        **_best_fields(ranked[0] if ranked else None),
    }


def _best_fields(best: TrialHistory | None) -> dict[str, Any]:
    plan = best.spec["plan"] if best else {}
    lr = best.lr if best else {}
    return {
        "best_trial": best.trial if best else None,
        "best_value": best.value if best else None,
        "peak_lr": lr.get("peak"),
        "base_lr": lr.get("base"),
        "rule": lr.get("rule"),
        "warmup_samples": lr.get("warmup_samples"),
        "micro_batch": plan.get("micro_batch"),
        "accumulation": plan.get("accumulation"),
        "world_size": plan.get("world_size"),
        "updates": best.updates if best else None,
        "samples_seen": best.samples_seen if best else None,
        "train_seconds": best.train_seconds if best else None,
    }
