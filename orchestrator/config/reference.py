"""The reference of a search space's keys, made from the spec itself: ``python -m orchestrator.config.reference``."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from orchestrator.config.duration import Duration
from orchestrator.config.fields import yaml_names
from orchestrator.config.spec import SweepSpec

_HEAD = """# Search spaces

A space is a YAML file. Every key has a default but `task.name`; a misspelt one is refused with the nearest valid key.
`--set key=value` lays a value over the file, `--set space.lr.rule=null` takes a key out of the space.

## What to try

Under `space`, any key of the sections `batch`, `lr`, `optimizer`, `task` and `training`, with one of:

| form | what is tried |
| --- | --- |
| `[16, 32, 64]` | these values |
| `{low: 0.01, high: 1.0, log: true}` | any number between, both ends included; `log: true` for even odds by factor |
| `{low: 32, high: 128, step: 32}` | steps from `low` to `high`, both included |
| `{low: 16, high: 512, powers_of: 2}` | powers between, both included |
| `{low: 0%, high: 10%}` | durations of one unit: a share of the budget, `samples`, or `updates` |

Every global batch that can be suggested must split evenly over the workers (and over `batch.micro` or
`batch.accumulation`, where given); the refusal names the nearest that do.

## Durations

`5%` of the budget, `2000 samples`, or `50 updates`. All of them become samples, so they mean the same at every batch.
"""


def reference() -> str:
    """The reference as Markdown: a table a section, with each key, its default and its help."""
    parts = [_HEAD]
    plain = []
    for key, section in yaml_names(SweepSpec).items():
        if section is None:
            plain.append(key)
        else:
            parts.append(_chapter("##", key, section))
            for inner, below in yaml_names(section).items():
                if below is not None:
                    parts.append(_chapter("###", f"{key}.{inner}", below))
    parts.insert(1, f"## Keys of the file itself\n\n{_table(SweepSpec, plain)}")
    return "\n".join(parts)


def _chapter(level: str, key: str, section: type[BaseModel]) -> str:
    return (
        f"{level} `{key}`\n\n{inspect.cleandoc(section.__doc__ or '')}\n\n{_table(section, list(yaml_names(section)))}"
    )


def _table(section: type[BaseModel], keys: list[str]) -> str:
    rows = ["| key | default | meaning |", "| --- | --- | --- |"]
    for name, field in section.model_fields.items():
        key = str(field.validation_alias or name)
        if key in keys and not isinstance(field.annotation, type(BaseModel)):
            rows.append(f"| `{key}` | {_default(field)} | {_line(field.description)} |")
    return "\n".join(rows) + "\n"


def _default(field: Any) -> str:
    if field.default is not PydanticUndefined:
        value = field.default
        if value is None:
            return "`null`"
        if isinstance(value, bool):
            return f"`{str(value).lower()}`"
        return f"`{value}`" if isinstance(value, Duration | str) else f"`{value:g}`"
    return "see there" if field.default_factory else "required"


def _line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
