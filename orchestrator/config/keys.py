"""Dotted keys of a spec, as the user writes them: which exist, which may be searched, and what one value must be."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from orchestrator.config.fields import attribute_name, yaml_names
from orchestrator.config.names import name_remedy
from orchestrator.config.pydantic_refusals import refusals_of
from orchestrator.config.refusal import Refusal
from orchestrator.config.training_sections import (
    BatchSection,
    LrSection,
    OpenSection,
    OptimizerSection,
    TaskSection,
    TrainingSection,
)

SEARCHABLE_SECTIONS: dict[str, type[BaseModel]] = {
    "batch": BatchSection,
    "lr": LrSection,
    "optimizer": OptimizerSection,
    "task": TaskSection,
    "training": TrainingSection,
}
_FIXED_SECTIONS = ("name", "seed", "objective", "budget", "evaluation", "search", "study", "cluster", "tracking")
_FIXED = {"task.name": "one search is about one task"}


def searchable_keys() -> list[str]:
    """Every dotted key that a space may name, apart from the options of the task and of the optimizer."""
    keys: list[str] = []
    for name, section in SEARCHABLE_SECTIONS.items():
        keys += [key for key in _leaves(name, section) if key not in _FIXED]
    return keys


def check_searchable(key: str) -> None:
    """Refuse a key that names nothing that a space may vary.

    Options of task and optimizer pass: their owners check them.

    Raises:
        Refusal: with the nearest valid key.
    """
    section, _, rest = key.partition(".")
    if key in _FIXED:
        raise Refusal(f"cannot be searched: {_FIXED[key]}", remedy=f"set {key} outside the space")
    if section in SEARCHABLE_SECTIONS and rest:
        if key in searchable_keys():
            return
        if issubclass(SEARCHABLE_SECTIONS[section], OpenSection) and "." not in rest:
            return
        prefix = f"{section}."
        children = [name.removeprefix(prefix) for name in searchable_keys() if name.startswith(prefix)]
        raise Refusal("unknown key", remedy=name_remedy(rest, children, prefix=prefix))
    if section in _FIXED_SECTIONS:
        raise Refusal("is the same for all trials of a search", remedy=f"set {key} outside the space")
    known = [*searchable_keys(), "task.<option>", "optimizer.<option>"]
    raise Refusal("unknown key", remedy=name_remedy(key, known))


def field_value(key: str, value: Any) -> Any:
    """`value` as the spec would hold it under the dotted `key`: the same checks as if it were written there.

    Raises:
        Refusal: what the section says about it, without a key.
    """
    section, *path = key.split(".")
    raw: Any = value
    for name in reversed(path):
        raw = {name: raw}
    if section == "task":
        raw = {"name": "any"} | raw
    model = SEARCHABLE_SECTIONS[section]
    try:
        parsed: Any = model.model_validate(raw, by_alias=True, by_name=False)
    except ValidationError as error:
        first = refusals_of(error, model, raw)[0]
        raise Refusal(first.rule, value=first.value, remedy=first.remedy) from None
    for name in path:
        if isinstance(parsed, OpenSection) and name in parsed.options:
            return parsed.options[name]
        parsed = getattr(parsed, attribute_name(type(parsed), name))
    return parsed


def _leaves(prefix: str, section: type[BaseModel]) -> list[str]:
    keys: list[str] = []
    for name, below in yaml_names(section).items():
        keys += _leaves(f"{prefix}.{name}", below) if below else [f"{prefix}.{name}"]
    return keys
