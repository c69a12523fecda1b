"""The task's options, the optimizer's, and the objective, against what the task says."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from orchestrator.config.facts import Facts
from orchestrator.config.names import name_remedy
from orchestrator.config.pydantic_refusals import refusals_of
from orchestrator.config.reach import Reach
from orchestrator.config.refusal import Refusal


def check_task(reach: Reach, facts: Facts) -> list[str]:
    """Refuse options that the task or the optimizer does not take, a metric that it does not have, a missing target."""
    for name, count in (("training", facts.train_samples), ("validation", facts.val_samples)):
        if count < 1:
            task = reach.spec.task.name
            raise Refusal(f"the task has no {name} samples", key="task.name", value=task, remedy="check its data")
    _check_option_names(reach, facts)
    _check_option_values(reach, facts)
    _check_optimizer(reach, facts)
    _check_objective(reach, facts)
    return []


def _check_option_names(reach: Reach, facts: Facts) -> None:
    if facts.task_options is None:
        return
    for name in (*reach.spec.task.options, *reach.spec.space_task_keys):
        if name not in facts.task_options:
            key = reach.where(f"task.{name}")
            remedy = name_remedy(name, facts.task_options, what="option")
            raise Refusal(f"task {reach.spec.task.name} has no such option", key=key, remedy=remedy)


def _check_option_values(reach: Reach, facts: Facts) -> None:
    if facts.validate_task is None:
        return
    written = reach.spec.task.options
    _validate_task(facts, written, "task")
    for name in reach.spec.space_task_keys:
        for value in reach.ends(f"task.{name}"):
            _validate_task(facts, {**written, name: value}, "space.task")


def _validate_task(facts: Facts, options: dict[str, Any], prefix: str) -> None:
    assert facts.validate_task is not None
    try:
        facts.validate_task(options)
    except ValidationError as error:
        raise refusals_of(error, BaseModel, options)[0].under(prefix) from None
    except ValueError as error:
        raise Refusal.from_error(error, key=prefix, value=options) from None


def _check_optimizer(reach: Reach, facts: Facts) -> None:
    if facts.validate_optimizer is None:
        return
    written = reach.spec.optimizer.options
    searched = [key for key in reach.spec.space if key.startswith("optimizer.") and key != "optimizer.name"]
    for name in reach.values("optimizer.name"):
        tries: list[tuple[str, dict[str, Any]]] = [("optimizer.name", written)]
        for key in searched:
            option = key.removeprefix("optimizer.")
            tries += [(key, {**written, option: value}) for value in reach.ends(key)]
        for key, options in tries:
            try:
                facts.validate_optimizer(name, options)
            except ValueError as error:
                value = name if key == "optimizer.name" else options[key.removeprefix("optimizer.")]
                raise Refusal.from_error(error, key=reach.where(key), value=value) from None


def _check_objective(reach: Reach, facts: Facts) -> None:
    objective = reach.spec.objective
    metrics = [f"val/{name}" for name in facts.metric_modes]
    if objective.metric not in metrics:
        rule = f"task {reach.spec.task.name} has no such metric"
        remedy = name_remedy(objective.metric, metrics, what="metric")
        raise Refusal(rule, key="objective.metric", value=objective.metric, remedy=remedy)
    if objective.kind != "best_metric" and objective.target is None:
        rule = f"objective {objective.kind} needs a target"
        remedy = f"write the value of {objective.metric} that counts as trained, or use kind: best_metric"
        raise Refusal(rule, key="objective.target", value=None, remedy=remedy)
