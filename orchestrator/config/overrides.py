"""Overrides of single keys, ``--set key=value``, laid over a document before it is validated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orchestrator.config import yaml_form
from orchestrator.config.names import name_remedy
from orchestrator.config.refusal import Refusal
from orchestrator.config.spec import DEFAULT_OPTIMIZER


def apply_overrides(document: dict[str, Any], overrides: Iterable[str]) -> list[str]:
    """Lay each ``key=value`` over `document`, in place; the value is YAML. Later ones win.

    What follows ``space.`` is one dotted key of the space; null takes it out of the space.

    Returns:
        The keys that were set.

    Raises:
        Refusal: no ``=``, no key, a value that is no YAML, or a key below something that is no mapping.
    """
    return [_apply(document, override) for override in overrides]


def _apply(document: dict[str, Any], override: str) -> str:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        raise Refusal("must be key=value", value=override, remedy="write it as lr.base=0.1")
    try:
        value = yaml_form.parse(text)
    except Refusal as refusal:
        raise Refusal(refusal.rule, key=key, value=text, remedy=refusal.remedy) from None
    section, _, rest = key.partition(".")
    path = [section, rest] if section == "space" and rest else key.split(".")
    if section == "optimizer" and rest and rest != "name" and "optimizer" not in document:
        # One option is changed, so the others of the default optimizer stay; another class has options of its own.
        document["optimizer"] = dict(DEFAULT_OPTIMIZER)
    target = document
    for i, name in enumerate(path[:-1]):
        if target.get(name) is None:
            target[name] = {}
        target = target[name]
        if not isinstance(target, dict):
            rule = f"{'.'.join(path[: i + 1])} holds a value, not keys"
            raise Refusal(rule, key=key, value=value, remedy=f"set {'.'.join(path[: i + 1])} itself")
    if section == "space" and rest and value is None:
        _take_out(target, rest)
    else:
        target[path[-1]] = value
    return key


def _take_out(space: dict[str, Any], key: str) -> None:
    if key not in space:
        remedy = name_remedy(key, space)
        raise Refusal("is not in the space, so it cannot be taken out", key=f"space.{key}", remedy=remedy)
    del space[key]
