"""A search space as it stands in YAML, read into parameters and written back.

One name has one list or one range, whatever the other names are: samplers need a fixed space (no conditions).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.config.duration import Duration
from orchestrator.config.fields import whole
from orchestrator.config.keys import check_searchable, field_value
from orchestrator.config.names import name_remedy
from orchestrator.config.range_rules import check_log, is_number, is_whole
from orchestrator.config.refusal import Refusal
from orchestrator.config.space import Choices, DurationRange, FloatRange, IntRange, Parameter, PowerRange

_RANGE_KEYS = ("low", "high", "log", "step", "powers_of")
_CONDITION_WORDS = {"if", "elif", "else", "when", "then", "unless", "case", "depends_on", "condition"}


def parse_space(raw: Any) -> dict[str, Parameter]:
    """Read the section ``space``; parameters that are parsed already pass through.

    Raises:
        Refusal: for the first wrong key in the order of the document.
    """
    if not isinstance(raw, Mapping):
        raise Refusal(
            "must be a mapping of dotted keys to what to try", value=raw, remedy="write batch.global: [32, 64]"
        )
    space: dict[str, Parameter] = {}
    for key, form in raw.items():
        try:
            space[key] = form if isinstance(form, Parameter) else parse_parameter(key, form)
        except Refusal as refusal:
            raise refusal.under(key) from None
    return space


def dump_space(space: Mapping[str, Parameter]) -> dict[str, Any]:
    """The section ``space`` as it stands in YAML."""
    return {key: parameter.to_form() for key, parameter in space.items()}


def parse_parameter(key: str, form: Any) -> Parameter:
    """Read what to try for the dotted `key`: a list of choices, or a mapping with low and high.

    Each value obeys the rules of the key that it is for. Raises Refusal, without `key`.
    """
    if isinstance(form, Mapping) and "." not in key and not set(form) & set(_RANGE_KEYS):
        remedy = f"write one dotted key, such as {key}.{next(iter(form), 'global')}"
        raise Refusal("a space is flat: it names dotted keys", remedy=remedy)
    check_searchable(key)
    if isinstance(form, list | tuple):
        return _choices(key, form)
    if isinstance(form, Mapping):
        return _range(key, form)
    if isinstance(form, str) and (" if " in form or " when " in form):
        raise _conditional(form)
    remedy = f"write a list or {{low: ..., high: ...}}; to fix the value, write it under {key} outside the space"
    raise Refusal("must be a list of choices or a range", value=form, remedy=remedy)


def _choices(key: str, form: list[Any] | tuple[Any, ...]) -> Choices:
    if any(isinstance(value, Mapping) for value in form):
        raise _conditional(list(form))
    if any(isinstance(value, list | tuple) for value in form):
        raise Refusal("choices must not be lists themselves", value=list(form), remedy="list plain values only")
    values = [field_value(key, value) for value in form]
    values = [str(value) if isinstance(value, Duration) else value for value in values]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if any(isinstance(value, float) for value in numbers) and len(numbers) == len([v for v in values if v is not None]):
        values = [None if value is None else float(value) for value in values]
    return Choices(options=tuple(values))


def _range(key: str, form: Mapping[str, Any]) -> Parameter:
    for name, value in form.items():
        if name in _CONDITION_WORDS or isinstance(value, Mapping):
            raise _conditional(dict(form))
        if name not in _RANGE_KEYS:
            if isinstance(value, list | tuple):
                raise Refusal("unknown key", key=name, value=value, remedy="write the list itself as the value")
            raise Refusal("unknown key", key=name, value=value, remedy=name_remedy(name, _RANGE_KEYS))
    if form.get("log") is True and is_number(form.get("low")):
        # Before the key's own rules, so that a log range from 0 is told about the logarithm.
        check_log(form["low"], True, None)
    for name in ("low", "high"):
        if name not in form:
            raise Refusal(f"a range needs {name}", value=dict(form), remedy="write {low: ..., high: ...}")
    low, high = (_end(key, name, form[name]) for name in ("low", "high"))
    log = form.get("log", False)
    if not isinstance(log, bool):
        raise Refusal("must be true or false", key="log", value=log, remedy="write log: true")
    if isinstance(low, Duration) and isinstance(high, Duration):
        return _duration_range(low, high, form)
    if "powers_of" in form:
        return _power_range(low, high, form)
    step = whole(form["step"]) if "step" in form else None
    if isinstance(low, int) and isinstance(high, int):
        if step is not None and not is_whole(step):
            remedy = "write a whole step, or low and high with a fraction (1.0)"
            raise Refusal("must be a whole number, as low and high are", key="step", value=step, remedy=remedy)
        check_log(low, log, step)
        return IntRange(low=low, high=high, log=log, step=1 if step is None else step)
    if step is not None and not is_number(step):
        raise Refusal("must be a number above 0", key="step", value=step, remedy="leave it out for no step")
    return FloatRange(low=float(low), high=float(high), log=log, step=None if step is None else float(step))


def _end(key: str, name: str, value: Any) -> Any:
    try:
        end = field_value(key, value)
    except Refusal as refusal:
        raise refusal.under(name) from None
    if isinstance(end, Duration) or (isinstance(end, int | float) and not isinstance(end, bool)):
        return end
    raise Refusal("the ends of a range must be numbers", key=name, value=end, remedy="list the values to try instead")


def _duration_range(low: Duration, high: Duration, form: Mapping[str, Any]) -> DurationRange:
    for name in ("log", "step", "powers_of"):
        if name in form:
            raise Refusal(
                "a range of durations has low and high only", key=name, value=form[name], remedy=f"remove {name}"
            )
    if low.value and high.value and low.unit != high.unit:
        raise Refusal("both ends must have one unit", value=dict(form), remedy=f"write both in {high.unit}")
    return DurationRange(low=low.value, high=high.value, unit=high.unit if high.value else low.unit)


def _power_range(low: Any, high: Any, form: Mapping[str, Any]) -> PowerRange:
    for name in ("log", "step"):
        if name in form:
            raise Refusal("powers have neither log nor step", key=name, value=form[name], remedy=f"remove {name}")
    low, high = whole(low), whole(high)
    if not (isinstance(low, int) and isinstance(high, int)):
        raise Refusal("powers are whole numbers", value=dict(form), remedy="write log: true for a range of fractions")
    return PowerRange(low=low, high=high, base=whole(form["powers_of"]))


def _conditional(form: Any) -> Refusal:
    rule = "one name has one list or one range, whatever the other parameters are"
    remedy = "write the widest range that makes sense in every case, or run one search per case"
    return Refusal(rule, value=form, remedy=remedy)
