"""The sweep's answer on LR rules: each rule at one common base LR, against the LR tuned at every batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.report.history import SweepHistory, TrialHistory
from orchestrator.report.objective import Objective
from orchestrator.theory.rule_comparison import RuleChoice, RuleResult, compare_rules

ALWAYS = ("none", "sqrt", "linear")


def compared_rules(history: SweepHistory, objective: Objective) -> list[dict[str, Any]]:
    """`theory.rule_comparison.RuleResult` of every rule, as flat dicts.

    The rules without parameters are always judged, for every trial tells something of all of them; others if
    they were tried, with the parameters of their best trial. With two objectives, the last one (samples) counts.
    """
    trials = [trial for trial in history.searched if trial.peak_lr > 0]
    own = [trial for trial in trials if trial.lr["rule"] == "sde"]
    shared = [trial for trial in trials if trial.lr["rule"] != "sde"]
    choices = [RuleChoice(rule=rule) for rule in ALWAYS]
    for rule in ("power", "noise"):
        ranked = objective.ranked([trial for trial in shared if trial.lr["rule"] == rule])
        choices += [_choice(trial) for trial in ranked[:1]]
    results = _compare(shared, choices, history, objective)
    # sde also scales the optimizer's constants, so its trials are comparable with each other alone.
    if own:
        results += _compare(own, [RuleChoice(rule="sde")], history, objective)
    return [_flat(result) for result in results]


def best_rule(rules: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The determined rule with the least mean shortfall among those that cover the most batches."""
    determined = [rule for rule in rules if not rule["reason"]]
    return min(determined, key=lambda rule: (-rule["covered"], rule["mean_shortfall"]), default=None)


def _choice(trial: TrialHistory) -> RuleChoice:
    lr = trial.lr
    return RuleChoice(rule=lr["rule"], exponent=lr["exponent"], noise_scale=lr["noise_scale"])


def _compare(
    trials: list[TrialHistory], choices: list[RuleChoice], history: SweepHistory, objective: Objective
) -> list[RuleResult]:
    return compare_rules(
        [point for trial in trials if (point := _point(trial, objective)) is not None],
        choices,
        mode=objective.modes[-1],
        reference_batch=history.spec["batch"]["reference"],
    )


def _point(trial: TrialHistory, objective: Objective) -> tuple[int, float, float] | None:
    """(batch, peak LR, value); NaN marks a peak that diverged; None for a trial that says nothing about its peak."""
    if trial.status == "diverged":
        return trial.global_batch, trial.peak_lr, math.nan
    values = objective.values_of(trial.value) if trial.finished else None
    return None if values is None else (trial.global_batch, trial.peak_lr, values[-1])


def _flat(result: RuleResult) -> dict[str, Any]:
    raw = result.to_dict()
    return {**raw.pop("choice"), **raw}
