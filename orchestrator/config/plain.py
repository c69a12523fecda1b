"""What may stand in a spec at all: text, finite numbers, booleans, null, lists and mappings of these, and not much."""

from __future__ import annotations

import json
import math
from typing import Any

from orchestrator.config.refusal import Refusal

LARGEST_JSON_BYTES = 256 * 1024
_DEEPEST = 20


def check_plain(value: Any) -> None:
    """Refuse what does not survive a trip through JSON, or is too large for a configuration.

    The walk stops as soon as the limit is passed, so a few YAML aliases that stand for gigabytes cost nothing.

    Raises:
        Refusal: names the key, relative to `value`.
    """
    _walk(value, (), 0)


def _walk(value: Any, path: tuple[str, ...], used_bytes: int) -> int:
    key = ".".join(path)
    if len(path) > _DEEPEST:
        raise Refusal(f"is nested more than {_DEEPEST} levels deep", key=".".join(path[:3]), remedy=_PASS_A_PATH)
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise Refusal("a key must be text", key=key, value=name, remedy="put the key in quotes")
            used_bytes = _walk(item, (*path, name), used_bytes + len(json.dumps(name)) + 2)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            used_bytes = _walk(item, (*path, str(i)), used_bytes + 2)
    elif value is None or isinstance(value, str | bool | int):
        used_bytes += len(json.dumps(value))
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Refusal("must be a finite number", key=key, value=value, remedy="write a plain number")
        used_bytes += len(json.dumps(value))
    else:
        rule = (
            f"a {type(value).__name__} cannot stand in a spec: text, numbers, true, false, null, lists and mappings can"
        )
        raise Refusal(rule, key=key, remedy=_PASS_A_PATH)
    if used_bytes > LARGEST_JSON_BYTES:
        rule = f"the spec is larger than {LARGEST_JSON_BYTES // 1024} KiB"
        raise Refusal(rule, key=".".join(path[:2]), remedy=_PASS_A_PATH)
    return used_bytes


_PASS_A_PATH = "pass the path of a file that the task reads, not the data itself"
