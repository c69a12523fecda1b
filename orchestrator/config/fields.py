"""The value types of a spec's fields: strict, so that "64" is no 64 and true is no 1."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)

from orchestrator.config.duration import Duration
from orchestrator.config.refusal import Refusal


class Section(BaseModel):
    """Base of every section: frozen, strict, unknown keys refused; the text under a field is its help."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )


def yaml_names(section: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """The keys of a section as they stand in YAML, each with the section below it, if it is one."""
    return {
        str(field.validation_alias or name): field.annotation
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        else None
        for name, field in section.model_fields.items()
    }


def attribute_name(section: type[BaseModel], yaml_name: str) -> str:
    """The attribute that holds the YAML key `yaml_name`."""
    for name, field in section.model_fields.items():
        if (field.validation_alias or name) == yaml_name:
            return name
    raise KeyError(yaml_name)


def whole(value: Any) -> Any:
    """A float that is a whole number (2e4) as an int; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _auto_or_count(value: Any) -> int | Literal["auto"]:
    value = whole(value)
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST):
        return value  # type: ignore[no-any-return]
    raise Refusal("must be auto or a whole number of at least 1", value=value, remedy="write auto, or 1 or more")


def _auto_or_flag(value: Any) -> bool | Literal["auto"]:
    if value == "auto" or isinstance(value, bool):
        return value  # type: ignore[no-any-return]
    raise Refusal("must be auto, true or false", value=value, remedy="write one of these without quotes")


def _bytes(value: Any) -> int:
    value, size = whole(value), 0
    if not isinstance(value, bool) and (not isinstance(value, str) or value.strip()[-1:].isalpha()):
        with suppress(ValidationError, OverflowError):
            size = int(_SIZES.validate_python(value))
    if not 1 <= size <= MOST:
        rule = f"must be a size from 1 to {MOST:g} bytes"
        raise Refusal(rule, value=value, remedy="write it with its unit, such as 80GiB or 16GB, or in plain bytes")
    return size


def _share(value: Any) -> Duration:
    try:
        share = Duration.parse(value)
    except Refusal as refusal:
        raise Refusal("must be a share from 0% to 100%", value=refusal.value, remedy='write it as "10%"') from None
    if share.value and share.unit != "share":
        raise Refusal("must be a share", value=value, remedy='write it as "10%"')
    return share


def _interval(value: Any) -> Duration:
    value = whole(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise Refusal("must be at least 1 sample", value=value, remedy="write samples, such as 2000")
        return Duration(value=value, unit="samples")
    try:
        interval = Duration.parse(value)
    except Refusal as refusal:
        raise Refusal(
            refusal.rule, value=value, remedy='write samples (2000) or a share of the budget ("10%")'
        ) from None
    if interval.unit == "updates":
        rule = "evaluations come by samples, so that batch sizes compare"
        raise Refusal(rule, value=value, remedy='write samples (2000) or a share of the budget ("10%")')
    if interval.value == 0:
        raise Refusal("must be at least 1 sample", value=value, remedy="write samples, such as 2000")
    return interval


def plain_duration(duration: Duration) -> int | str:
    """As it stands in YAML: 0, or its text."""
    return str(duration) if duration.value else 0


def _plain_interval(interval: Duration) -> int | str:
    return int(interval.value) if interval.unit == "samples" else str(interval)


_SIZES = TypeAdapter(ByteSize)
MOST = 10**15  # below 2**53, so that a count stays exact where it becomes a float

Count = Annotated[int, BeforeValidator(whole), Field(ge=1, le=MOST)]
CountOrZero = Annotated[int, BeforeValidator(whole), Field(ge=0, le=MOST)]
Seed = Annotated[int, BeforeValidator(whole), Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(gt=0)]
AutoOrCount = Annotated[int | Literal["auto"], PlainValidator(_auto_or_count)]
AutoOrFlag = Annotated[bool | Literal["auto"], PlainValidator(_auto_or_flag)]
Bytes = Annotated[int, PlainValidator(_bytes)]
AnyDuration = Annotated[Duration, PlainValidator(Duration.parse), PlainSerializer(plain_duration)]
Share = Annotated[Duration, PlainValidator(_share), PlainSerializer(plain_duration)]
Interval = Annotated[Duration, PlainValidator(_interval), PlainSerializer(_plain_interval)]
