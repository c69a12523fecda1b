"""Sampler, objective and early stopping: whether they can be used together."""

from __future__ import annotations

import math

from orchestrator.config.reach import Reach
from orchestrator.config.refusal import Refusal
from orchestrator.config.sweep_sections import SearchSection

_MODELLING = ("tpe", "gp")


def check_search(reach: Reach) -> list[str]:
    """Refuse a grid without end, and early stopping that the objective cannot serve."""
    search = reach.spec.search
    _check_early_stopping(reach)
    warnings = []
    if search.sampler == "grid":
        warnings += _check_grid(reach)
    if search.sampler == "nsga2" and reach.spec.objective.kind != "updates_and_samples":
        warnings.append(
            "search.sampler = nsga2: is made for two objectives at once (objective.kind: updates_and_samples); "
            "tpe needs fewer trials for one"
        )
    if search.sampler in _MODELLING and search.startup_trials >= search.trials:
        warnings.append(
            f"search.startup_trials = {search.startup_trials}: "
            f"all {search.trials} trials are random, {search.sampler} never suggests"
        )
    return warnings


def _check_grid(reach: Reach) -> list[str]:
    sizes = []
    for key, parameter in reach.spec.space.items():
        if parameter.size is None:
            rule = "a grid cannot enumerate a range without steps"
            remedy = "give a step or a list, or use another search.sampler"
            raise Refusal(rule, key=f"space.{key}", value=parameter.to_form(), remedy=remedy)
        sizes.append(parameter.size)
    points, trials = math.prod(sizes), reach.spec.search.trials
    if points > trials:
        return [f"search.trials = {trials}: the grid has {points} points, so most of it is not tried"]
    return []


def _check_early_stopping(reach: Reach) -> None:
    search, kind = reach.spec.search, reach.spec.objective.kind
    key, value = "search.early_stopping", search.early_stopping
    if "race" in value and kind == "best_metric":
        rule = "race compares samples to a target, and objective best_metric has none"
        raise Refusal(rule, key=key, value=value, remedy="use asha, or an objective.kind with a target")
    if "asha" in value and kind == "updates_and_samples":
        rule = "asha ranks by one value, and objective updates_and_samples has two"
        raise Refusal(rule, key=key, value=value, remedy="use race or none")
    if search.lowest_rung is not None:
        _check_lowest_rung(reach, search, search.lowest_rung)


def _check_lowest_rung(reach: Reach, search: SearchSection, lowest_rung: int) -> None:
    largest, budget_samples = reach.largest("batch.global"), reach.spec.budget.samples
    if lowest_rung < largest:
        rule = f"must be at least the largest global batch, which is {largest}, or large batches skip it"
        raise Refusal(rule, key="search.lowest_rung", value=lowest_rung, remedy=f"write {largest} or more, or null")
    if lowest_rung >= budget_samples:
        rule = f"must be below budget.samples, which is {budget_samples}, or nothing is ever stopped"
        raise Refusal(rule, key="search.lowest_rung", value=lowest_rung, remedy="lower it, or write null")
