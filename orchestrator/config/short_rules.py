"""What makes a spec one that the study methods branch and scan can train, without knowing its task yet.

Both search nothing but compare batches, so that every other key of the space needs one value; so does what scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel

from orchestrator.config.fields import attribute_name
from orchestrator.config.load import Loaded, source_of, spec_from_dict
from orchestrator.config.refusal import Refusal
from orchestrator.config.space import Choices, DurationRange, FloatRange, Parameter
from orchestrator.config.spec import SweepSpec
from orchestrator.config.study_rules import BATCHES, ladder_of
from orchestrator.config.sweep_sections import SearchSection
from orchestrator.config.training_sections import OpenSection

LEAST = {"branch": 3, "scan": 2}
Method = Literal["branch", "scan"]


def as_branch(loaded: Loaded, *, file: str) -> Loaded:
    """The spec as branches train it: batches alone in the space, and no target that would end a run.

    Raises:
        ConfigError: names file, key, value, rule and remedy.
    """
    return _as(loaded, "branch", _check_branch, file)


def as_scan(loaded: Loaded, *, file: str) -> Loaded:
    """The spec as a scan trains it: batches alone in the space, no target, and no decay, as it ends long before.

    Raises:
        ConfigError: names file, key, value, rule and remedy.
    """
    return _as(loaded, "scan", lambda spec: None, file)


def batches_of(spec: SweepSpec) -> tuple[int, ...] | None:
    """The global batches that are named, ascending; None where the study places them itself."""
    return ladder_of(spec) if spec.study.batches == "auto" else spec.study.batches


def _as(loaded: Loaded, method: Method, check: Callable[[SweepSpec], None], file: str) -> Loaded:
    spec = loaded.spec
    try:
        check(spec)
        batches = _checked_batches(spec, method)
        raw, notes = settled(spec)
    except Refusal as refusal:
        raise refusal.in_file(source_of(refusal.key, file=file, set_keys=loaded.set_keys)) from None
    raw["space"] = {} if batches is None else {BATCHES: list(batches)}
    raw["batch"]["global"] = raw["batch"]["reference"]
    warnings = about_training(loaded.warnings) + notes
    if method == "scan" and spec.lr.decay != "none":
        raw["lr"]["decay"] = "none"
        warnings.append(f"lr.decay = {spec.lr.decay}: a scan sees the beginning of training, and leaves it out")
    return Loaded(spec=spec_from_dict(raw, file=file), warnings=tuple(warnings), set_keys=loaded.set_keys)


def settled(spec: SweepSpec) -> tuple[dict[str, Any], list[str]]:
    """The spec, as it stands in YAML, with one value for every key of its space but the batch, and neither search nor
    target; and what is to be said of that."""
    values = {key: one_value(spec, key, parameter) for key, parameter in spec.space.items() if key != BATCHES}
    raw = with_values(spec, values)
    raw["search"] = SearchSection().model_dump(mode="json")
    raw["objective"] = {"kind": "best_metric", "metric": spec.objective.metric}
    raw["space"] = {}
    return raw, list(notes_on(spec, values))


def about_training(warnings: Iterable[str]) -> list[str]:
    """Without those about the space, which are of no interest where nothing is searched."""
    return [text for text in warnings if not text.startswith("space")]


def with_values(spec: SweepSpec, values: Mapping[str, Any]) -> dict[str, Any]:
    """The spec as a dict, with `values` by dotted key written into it."""
    raw = spec.to_dict()
    for key, value in values.items():
        *path, name = key.split(".")
        section = raw
        for part in path:
            section = section[part]
        section[name] = value
    return raw


def _check_branch(spec: SweepSpec) -> None:
    if spec.lr.decay != "none":
        rule = "a rate of learning is measured at a constant learning rate"
        raise Refusal(rule, key="lr.decay", value=spec.lr.decay, remedy="write lr.decay: none")
    if spec.checkpoint.every_s is None:
        raise Refusal("branches begin with checkpoints", key="checkpoint.every_s", remedy="write seconds, such as 30")


def _checked_batches(spec: SweepSpec, method: Method) -> tuple[int, ...] | None:
    batches = batches_of(spec)
    if batches is None and BATCHES in spec.space:
        remedy = "list the batches, such as [8, 16, 32, 64, 256]"
        raise Refusal("batches are compared one by one", key=f"space.{BATCHES}", remedy=remedy)
    if batches is not None and len(batches) < LEAST[method]:
        rule = f"a {method} compares at least {LEAST[method]} batches"
        raise Refusal(rule, key=f"space.{BATCHES}", value=list(batches), remedy="add some, 2 to 4 times apart")
    return batches


def one_value(spec: SweepSpec, key: str, parameter: Parameter) -> Any:
    """What stands outside the space, if it was written there or is a default among the choices; else the middle."""
    found: Any = spec.to_dict()
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if is_written(spec, key) or (isinstance(parameter, Choices) and parameter.contains(found)):
        return found
    return _middle(parameter)


def is_written(spec: SweepSpec, key: str) -> bool:
    """Whether the file, or ``--set``, gave `key` a value outside the space."""
    section: Any = spec
    for part in key.split("."):
        if isinstance(section, OpenSection) and part in section.options:
            return True
        if not isinstance(section, BaseModel):
            return True
        name = attribute_name(type(section), part) if _has(section, part) else None
        if name is None or name not in section.model_fields_set:
            return False
        section = getattr(section, name)
    return True


def _has(section: BaseModel, part: str) -> bool:
    return any((field.validation_alias or name) == part for name, field in type(section).model_fields.items())


def _middle(parameter: Parameter) -> Any:
    if isinstance(parameter, Choices):
        return parameter.options[0]
    if isinstance(parameter, DurationRange):
        middle = 0.5 * (parameter.low + parameter.high)
        return parameter.at(middle if parameter.unit == "share" else round(middle))
    values = parameter.values()
    if values is not None:
        return values[len(values) // 2]
    assert isinstance(parameter, FloatRange)
    middle = (parameter.low * parameter.high) ** 0.5 if parameter.log else 0.5 * (parameter.low + parameter.high)
    return float(f"{middle:.3g}")


def notes_on(spec: SweepSpec, values: dict[str, Any]) -> Iterator[str]:
    """What is told of the values that keys of the space were given."""
    for key, value in values.items():
        how = "as written outside the space" if is_written(spec, key) else "from the space, which is not searched here"
        yield f"{key} = {value}: {how}"
