"""YAML and overrides in, one validated spec out, or one error that names file, key, value, rule and remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.config import yaml_form
from orchestrator.config.overrides import apply_overrides
from orchestrator.config.plain import LARGEST_JSON_BYTES, check_plain
from orchestrator.config.pydantic_refusals import refusals_of
from orchestrator.config.refusal import Refusal
from orchestrator.config.space import Choices, IntRange
from orchestrator.config.spec import SweepSpec
from orchestrator.credentials import MASK, hide, is_masked
from orchestrator.errors import ConfigError

OVERRIDE_SOURCE = "--set"
_ASKED_ELSEWHERE = ("tracking.uri",)  # the environment may have it
_LARGEST_FILE_BYTES = 4 * LARGEST_JSON_BYTES  # leaves room for comments


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A spec, what its author should know although nothing is wrong, and the keys that ``--set`` decided."""

    spec: SweepSpec
    warnings: tuple[str, ...]
    set_keys: tuple[str, ...] = ()


def load_spec(path: str | Path, overrides: Iterable[str] = ()) -> Loaded:
    """Read the YAML file at `path`, lay `overrides` (``key=value``) over it, and validate the result.

    Raises:
        ConfigError: the first error in the order of the file; its file is `path` as given, or ``--set``.
    """
    file = str(path)
    document = _document(file)
    try:
        set_keys = apply_overrides(document, overrides)
    except Refusal as refusal:
        raise refusal.in_file(OVERRIDE_SOURCE) from None
    spec = spec_from_dict(document, file=file, set_keys=set_keys)
    for key in _masked(document):
        if key not in _ASKED_ELSEWHERE:
            remedy = f"give it again with --set {key}=..., or keep the credential in the environment"
            raise ConfigError("lost its credential when it was written down", file=file, key=key, remedy=remedy)
    return Loaded(spec=spec, warnings=tuple(hide(_warnings(spec))), set_keys=tuple(set_keys))


def masked_keys(path: str | Path) -> tuple[str, ...]:
    """Keys of the YAML file at `path` that lost a credential when it was written, for ``--set`` to give them again.

    Raises:
        ConfigError: it cannot be read, or is no plain document.
    """
    document = _document(str(path))
    try:
        check_plain(document)
    except Refusal as refusal:
        raise refusal.in_file(str(path)) from None
    return tuple(_masked(document))


def spec_from_dict(raw: Mapping[str, Any], *, file: str | None = None, set_keys: Iterable[str] = ()) -> SweepSpec:
    """Validate nested mappings named as in YAML, such as `SweepSpec.to_dict` gives.

    Args:
        raw: the document.
        file: named in errors.
        set_keys: dotted keys that came from ``--set``; errors about them say so.

    Raises:
        ConfigError: the first error in the order of the document.
    """
    try:
        check_plain(raw)
        return SweepSpec.model_validate(raw, by_alias=True, by_name=False)
    except ValidationError as error:
        refusal = refusals_of(error, SweepSpec, raw)[0]
    except Refusal as plain_refusal:
        refusal = plain_refusal
    raise refusal.in_file(source_of(refusal.key, file=file, set_keys=set_keys))


def source_of(key: str, *, file: str | None, set_keys: Iterable[str]) -> str | None:
    """Where the dotted `key` got its value: ``--set`` if it, a part of it or what holds it was set, else `file`."""
    was_set = any(f"{key}.".startswith(f"{name}.") or f"{name}.".startswith(f"{key}.") for name in set_keys)
    return OVERRIDE_SOURCE if was_set else file


def _document(file: str) -> dict[str, Any]:
    try:
        document = yaml_form.parse(_read(file))
    except Refusal as refusal:
        raise refusal.in_file(file) from None
    if not isinstance(document, dict):
        rule = "the file is empty" if document is None else "the file must be a mapping of keys to values"
        raise ConfigError(rule, file=file, remedy="start it with task: {name: digits}")
    return document


def _masked(value: Any, key: str = "") -> Iterator[str]:
    """Dotted keys of the texts in a document that `credentials.hide` changed; a list counts as one."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _masked(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        if any(True for item in value for _ in _masked(item)):
            yield key
    elif isinstance(value, str) and (is_masked(value) or value == MASK):
        yield key


def _read(file: str) -> str:
    try:
        with open(file, "rb") as handle:
            content = handle.read(_LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise Refusal("there is no such file", remedy="check the path, relative to the current folder") from None
    except OSError as error:
        raise Refusal(f"cannot be read: {error.strerror}", remedy="give a readable YAML file") from None
    if len(content) > _LARGEST_FILE_BYTES:
        rule = f"the file is larger than {_LARGEST_FILE_BYTES // 1024} KiB"
        raise Refusal(rule, remedy="pass the path of a file that the task reads, not the data itself")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Refusal(f"line {line} is no UTF-8 text", remedy="save the file as UTF-8") from None


def _warnings(spec: SweepSpec) -> list[str]:
    warnings = []
    if not spec.space:
        warnings.append("space: is empty, so the spec itself is the only candidate")
    for key, parameter in spec.space.items():
        if isinstance(parameter, Choices) and parameter.size == 1:
            value = parameter.values()[0]
            warnings.append(f"space.{key} = [{value}]: is a single value; write it under {key} outside the space")
        if isinstance(parameter, IntRange) and key.startswith("optimizer."):
            remedy = f"write low: {parameter.low}.0 for all numbers between"
            warnings.append(f"space.{key}: tries whole numbers only, because both ends are; {remedy}")
    return warnings
