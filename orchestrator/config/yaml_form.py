"""The YAML that specs are written in: YAML 1.2's plain scalars, so that 1e-3 is a number and no, on, 12:30 are text.

PyYAML follows YAML 1.1, where `lr: 1e-3` is text, and keeps the last of two equal keys. A bare `1_000` stays a number.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from orchestrator.config.refusal import Refusal
from orchestrator.credentials import hide

_SCALARS = [
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
]


class _Loader(yaml.SafeLoader):
    """Safe: builds plain values only."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            # What PyYAML's constructors raise on a scalar that its tag does not fit, such as `!!bool maybe`.
            text = str(node.value)
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            problem = f"{shown!r} is no {str(node.tag).rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


class _Dumper(yaml.SafeDumper):
    """Quotes what either version of YAML would not read back as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # PyYAML writes the next-line character bare outside double quotes, and reads it back as a line end.
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\x85" in text else None)


_Dumper.add_representer(str, _text)


def dump(value: Any) -> str:
    """Plain nested values as YAML, in their order, with every credential taken out."""
    return yaml.dump(hide(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def parse(text: str) -> Any:
    """The one document in `text` as plain nested values; None if it is empty.

    Raises:
        Refusal: syntax error or a key given twice, with its line.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_twins(node, (), set())
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise Refusal(f"{place}is no valid YAML: {problem}", remedy=_SYNTAX_REMEDY) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Refusal(f"line {line}: is no valid YAML: {error.reason}", remedy="remove the character") from None
    except RecursionError:
        raise Refusal("is nested too deeply", remedy="pass the path of a file that the task reads") from None
    except ValueError as error:
        if isinstance(error, Refusal):
            raise
        raise Refusal(f"is no valid YAML: {error}", remedy=_SYNTAX_REMEDY) from None


def _refuse_twins(node: yaml.Node, path: tuple[str, ...], seen: set[int]) -> None:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            _refuse_twins(item, (*path, str(i)), seen)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for name_node, item in node.value:
        name, line = str(name_node.value), name_node.start_mark.line + 1
        if name in lines and name_node.tag != "tag:yaml.org,2002:merge":
            rule = f"is given twice, in lines {lines[name]} and {line}"
            remedy = "keep one"
            if path[:1] == ("space",):
                remedy = "keep one list or one range for one name, whatever the other parameters are"
            raise Refusal(rule, key=".".join((*path, name)), remedy=remedy)
        lines[name] = line
        _refuse_twins(item, (*path, name), seen)


_SYNTAX_REMEDY = "check indentation, quotes and brackets there"
