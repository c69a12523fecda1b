"""The task's options, the optimizer's, and the objective, against what the task says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from orchestrator.config.facts import Facts
from orchestrator.config.names import name_remedy
from orchestrator.config.pydantic_refusals import refusals_of
from orchestrator.config.reach import Reach
from orchestrator.config.refusal import Refusal
from orchestrator.errors import ConfigError

_MOST_COMBINATIONS = 256


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
    return _check_offload(reach)


def task_options(reach: Reach) -> Iterator[dict[str, Any]]:
    """The task's options for every combination of what the space can suggest for them, ranges by their ends."""
    keys = [f"task.{name}" for name in reach.spec.space_task_keys]
    for chosen in combinations(reach, keys):
        yield reach.spec.task.options | {key.removeprefix("task."): value for key, value in chosen.items()}


def combinations(reach: Reach, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every combination of the ends of `keys`; past a limit, each end beside the first ones of the other keys."""
    ends = [reach.ends(key) for key in keys]
    if math.prod(map(len, ends)) <= _MOST_COMBINATIONS:
        for values in itertools.product(*ends):
            yield dict(zip(keys, values, strict=True))
        return
    first = {key: values[0] for key, values in zip(keys, ends, strict=True)}
    for key, values in zip(keys, ends, strict=True):
        for value in values:
            yield first | {key: value}


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
    for options in task_options(reach):
        try:
            facts.validate_task(options)
        except ValidationError as error:
            refusal = refusals_of(error, BaseModel, options)[0].under("task")
            key = reach.where(refusal.key)
            raise Refusal(refusal.rule, key=key, value=refusal.value, remedy=refusal.remedy) from None
        except ValueError as error:
            raise Refusal.from_error(error, key="task", value=options) from None


def _check_optimizer(reach: Reach, facts: Facts) -> None:
    if facts.validate_optimizer is None:
        return
    written = reach.spec.optimizer.options
    searched = [key for key in reach.spec.space if key.startswith("optimizer.") and key != "optimizer.name"]
    for name in reach.values("optimizer.name"):
        for chosen in combinations(reach, searched):
            options = {**written, **{key.removeprefix("optimizer."): value for key, value in chosen.items()}}
            try:
                facts.validate_optimizer(name, options)
            except ConfigError as error:
                # An error about the options together is about the one that the space adds, if it is one only.
                key, value = error.key or "optimizer", error.value
                if key == "optimizer" and len(searched) == 1:
                    key, value = searched[0], chosen[searched[0]]
                raise Refusal(error.rule, key=reach.where(key), value=value, remedy=error.remedy) from None
            except ValueError as error:
                key = searched[0] if len(searched) == 1 else "optimizer.name"
                raise Refusal.from_error(error, key=reach.where(key), value=chosen.get(key, name)) from None


def _check_offload(reach: Reach) -> list[str]:
    key = "training.offload_optimizer"
    if True not in reach.values(key):
        return []
    if True in reach.values("optimizer.capturable"):
        rule = f"a step that is captured on a GPU cannot be made on the host, as {key} asks"
        raise Refusal(rule, key=reach.where("optimizer.capturable"), value=True, remedy=f"remove it, or {key}")
    if reach.spec.cluster.gpus_per_worker:
        return []
    return [f"{reach.where(key)}: frees nothing for workers without a GPU, and holds the parameters twice"]


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
