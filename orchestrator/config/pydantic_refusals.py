"""pydantic's validation errors as refusals: dotted key, value, rule and remedy, in the order of the document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.config.fields import yaml_names
from orchestrator.config.names import name_remedy, nearest_names
from orchestrator.config.refusal import Refusal

_TYPES = {
    "int_type": ("must be a whole number", "write a plain number, without quotes or a fraction"),
    "int_from_float": ("must be a whole number", "write it without a fraction"),
    "float_type": ("must be a number", "write a plain number, without quotes"),
    "bool_type": ("must be true or false", "write true or false without quotes"),
    "string_type": ("must be text", "put it in quotes"),
    "finite_number": ("must be a finite number", "write a plain number"),
    "string_pattern_mismatch": (
        "has characters that are not allowed here",
        "start with a letter, go on with letters, digits and underscores",
    ),
    "model_type": ("must be a mapping of keys to values", "indent its keys below it"),
    "missing": ("is required", "add it"),
}
_BOUNDS = {
    "greater_than": ("gt", "must be above {}", "write a number above {}"),
    "greater_than_equal": ("ge", "must be at least {}", "write {} or more"),
    "less_than": ("lt", "must be below {}", "write a number below {}"),
    "less_than_equal": ("le", "must be at most {}", "write {} or less"),
}


def refusals_of(error: ValidationError, model: type[BaseModel], document: Any) -> list[Refusal]:
    """Every error as a refusal, first in the document first; a missing key comes last in its mapping.

    Args:
        error: from validating `document` against `model`.
        model: gives the valid names for a misspelt one.
        document: nested mappings as the user wrote them.
    """
    # A default that is made from a broken field is a consequence, not an error of its own.
    details = [one for one in error.errors(include_url=False) if one["type"] != "default_factory_not_called"]
    details.sort(key=lambda one: _position(one["loc"], document))
    return [_refusal(one, model) for one in details]


def _position(loc: tuple[int | str, ...], document: Any) -> tuple[int, ...]:
    position = []
    for name in loc:
        names = list(document) if isinstance(document, Mapping) else []
        position.append(names.index(name) if name in names else len(names))
        document = document.get(name) if isinstance(document, Mapping) else None
    return tuple(position)


def _refusal(error: ErrorDetails, model: type[BaseModel]) -> Refusal:
    kind, key = error["type"], ".".join(str(name) for name in error["loc"])
    context = error.get("ctx", {})
    cause = context.get("error")
    value: Any = ... if kind == "missing" else error["input"]
    if isinstance(cause, Refusal):
        return cause.under(key) if key else cause
    if kind == "extra_forbidden":
        *above, name = (str(part) for part in error["loc"])
        prefix = "".join(f"{part}." for part in above)
        remedy = name_remedy(name, _names_at(error["loc"][:-1], model), prefix=prefix)
        if "." in name:
            remedy = f"nest it, {name.replace('.', ': {', 1)}: ...}}; dotted keys are for space and --set"
        return Refusal("unknown key", key=key, value=value, remedy=remedy)
    if kind == "literal_error":
        valid = re.findall(r"'([^']*)'", context["expected"])
        near = nearest_names(value, valid) if isinstance(value, str) else []
        remedy = f"the nearest valid value is {near[0]}" if near else "write one of these"
        return Refusal(f"must be one of {', '.join(valid)}", key=key, value=value, remedy=remedy)
    if kind in _BOUNDS:
        limit, rule, remedy = _BOUNDS[kind]
        bound = f"{context[limit]:g}"
        return Refusal(rule.format(bound), key=key, value=value, remedy=remedy.format(bound))
    rule, hint = _TYPES.get(kind, (error["msg"][0].lower() + error["msg"][1:], None))
    return Refusal(rule, key=key, value=value, remedy=hint)


def _names_at(loc: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    below: type[BaseModel] | None = model
    for name in loc:
        below = yaml_names(below).get(str(name)) if below else None
    return list(yaml_names(below)) if below else []
