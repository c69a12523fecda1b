"""What to do next, as sentences: each one follows from a finding in the sweep's own record, and says which."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.report import formats
from orchestrator.report.history import SweepHistory, TrialHistory
from orchestrator.report.objective import Objective
from orchestrator.report.rules import best_rule

LR_EDGE_SHARE = 0.1
MANY_SHARE = 0.25


def what_next(
    history: SweepHistory,
    objective: Objective,
    best: TrialHistory | None,
    rules: Sequence[Mapping[str, Any]],
    repeats: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Sentences, the most pressing first; never empty.

    Args:
        history: the sweep.
        objective: what it optimised.
        best: its best trial, if there is one.
        rules: `RuleResult.to_dict()` of every rule that was compared.
        repeats: as in `summary.json`.
    """
    two = len(objective.names) > 1
    advice = [
        *_unfinished(history),
        *_bad_trials(history),
        *_target(history, objective),
        # Of two objectives, one is always best at an end: only a single best setting says where to look next.
        *(_batch_edge(history, best) if best and not two else []),
        *(_lr_edge(history, best) if best and not two else []),
        *_rules(rules),
        *_seeds(best, repeats),
    ]
    return advice or ["The best setting lies inside every range that was searched: train with it."]


def _unfinished(history: SweepHistory) -> list[str]:
    if history.status == "done":
        return []
    return [
        f"The sweep ended as {history.status!r} with {len(history.finished)} finished trials: "
        "run it again for a full answer."
    ]


def _bad_trials(history: SweepHistory) -> list[str]:
    trials = list(history.trials.values())
    advice = []
    diverged = [trial for trial in trials if trial.status == "diverged"]
    if trials and len(diverged) >= MANY_SHARE * len(trials):
        lowest = min(trial.peak_lr for trial in diverged)
        advice.append(
            f"{len(diverged)} of {len(trials)} trials diverged, at peak LRs from {formats.lr(lowest)}: "
            "lower the upper end of lr.base, or lengthen lr.warmup."
        )
    failed = Counter(trial.reason or "no reason given" for trial in trials if trial.status == "failed")
    if failed:
        reason, times = failed.most_common(1)[0]
        most = "" if times == failed.total() else f", {times} of them"
        advice.append(f"{failed.total()} of {len(trials)} trials failed{most} with: {_first_line(reason)}")
    return advice


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0].rstrip(".") + "."


def _target(history: SweepHistory, objective: Objective) -> list[str]:
    if objective.kind == "best_metric" or not history.finished:
        return []
    reached = [trial for trial in history.trials.values() if trial.status == "target_reached"]
    if len(reached) > MANY_SHARE * len(history.finished):
        return []
    return [
        f"{len(reached)} of {len(history.finished)} finished trials reached {objective.metric} = "
        f"{objective.target:g}: raise budget.samples, or choose an easier objective.target."
    ]


def _batch_edge(history: SweepHistory, best: TrialHistory) -> list[str]:
    ends = _ends(history.spec.get("space", {}).get("batch.global"))
    if ends is None or ends[0] == ends[1]:
        return []
    low, high = ends
    if best.global_batch == high:
        return [f"The best batch, {high:g}, is the largest in batch.global: add {2 * high:g}."]
    smaller = int(low) // 2
    if best.global_batch == low and smaller >= history.spec["cluster"]["workers"]:
        return [f"The best batch, {low:g}, is the smallest in batch.global: add {smaller}."]
    return []


def _lr_edge(history: SweepHistory, best: TrialHistory) -> list[str]:
    ends = _ends(history.spec.get("space", {}).get("lr.base"))
    base = best.lr["base"]
    if ends is None or not 0 < ends[0] < ends[1] or base <= 0:
        return []
    low, high = ends
    position = math.log(base / low) / math.log(high / low)
    if position >= 1 - LR_EDGE_SHARE:
        return [
            f"The best lr.base, {formats.lr(base)}, is at the upper end of its range: go to {formats.lr(3 * high)}."
        ]
    if position <= LR_EDGE_SHARE:
        return [f"The best lr.base, {formats.lr(base)}, is at the lower end of its range: go to {formats.lr(low / 3)}."]
    return []


def _ends(entry: Any) -> tuple[float, float] | None:
    """Least and greatest value of a space's entry; None if the parameter is not searched or not numeric."""
    if isinstance(entry, Mapping):
        return float(entry["low"]), float(entry["high"])
    if isinstance(entry, Sequence) and entry and all(isinstance(value, int | float) for value in entry):
        return float(min(entry)), float(max(entry))
    return None


def _rules(rules: Sequence[Mapping[str, Any]]) -> list[str]:
    best = best_rule(rules)
    if best is None:
        return []
    rule = f"Across {best['covered']} batch sizes, lr.rule {best['rule']} with lr.base {formats.lr(best['base_lr'])}"
    worst = max((b for b in best["batches"] if b["shortfall"] is not None), key=lambda b: b["shortfall"])
    if worst["shortfall"] == 0:
        finding = f"{rule} does as well as an LR tuned at each"
    else:
        finding = (
            f"{rule} is on average {formats.number(best['mean_shortfall'])} behind an LR tuned at each, and at worst "
            f"{formats.number(worst['shortfall'])}, at batch {worst['global_batch']}"
        )
    edge = ", but that base is at the edge of what was tried: widen lr.base" if best["at_edge"] else ""
    return [f"{finding}{edge}."]


def _seeds(best: TrialHistory | None, repeats: Sequence[Mapping[str, Any]]) -> list[str]:
    if best is None:
        return []
    if not repeats:
        return ["One seed a setting says nothing about luck: repeat the best ones with --seeds 3."]
    known = [r for r in repeats if r["measure"] == repeats[0]["measure"] and r["new_seeds_mean"] is not None]
    if not known:
        return ["No repeat under another seed finished with a value: the best value may be luck."]
    sign = 1.0 if known[0]["mode"] == "min" else -1.0
    steady = min(known, key=lambda r: sign * r["new_seeds_mean"])
    advice = []
    if steady["trial"] != best.trial:
        advice.append(
            f"Under new seeds the setting of {steady['trial']} does better than that of {best.trial} "
            f"(mean {formats.number(steady['new_seeds_mean'])}): prefer it."
        )
    rivals = [r["trial"] for r in known if r is not steady and _overlap(r, steady)]
    if rivals:
        advice.append(
            f"The seeds do not tell {steady['trial']} from {', '.join(rivals)} (95 % intervals overlap): "
            "choose the cheaper one, or repeat with more --seeds."
        )
    return advice


def _overlap(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if a["low"] is None or b["low"] is None:
        return True
    return bool(a["low"] <= b["high"] and b["low"] <= a["high"])
