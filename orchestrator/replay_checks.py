"""What a replay needs to be the same run: the task's source, its data, its options, and the software around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.config.check_task import task_options
from orchestrator.config.load import OVERRIDE_SOURCE, spec_from_dict
from orchestrator.config.overrides import apply_overrides
from orchestrator.config.reach import Reach
from orchestrator.config.refusal import Refusal
from orchestrator.config.trial import TrialSpec
from orchestrator.credentials import MASK, is_masked
from orchestrator.errors import ConfigError, RefusedError, TaskError
from orchestrator.tracking.params import text_of
from orchestrator.tracking.record import UNKNOWN, TrialRecord, spec_of
from orchestrator.tracking.software import cpu_name, software_versions
from orchestrator.tracking.task_source import source_hash, task_source
from orchestrator.training.preflight import check_task
from orchestrator.training.registry import load_task, module_of

_FILE = "the record"
# Where a project stands in its history says nothing that source hashes do not say better.
_NOT_COMPARED = ("git_commit",)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that is not as recorded, and could change the history."""

    name: str
    recorded: str
    here: str

    def __str__(self) -> str:
        return f"{self.name} was {self.recorded}, and is {self.here} here"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the task comes from.

    Args:
        files: the recorded texts, if those are used; empty for the installed ones.
        note: which, for people.
        differences: what is not as recorded.
    """

    files: dict[str, str] = field(default_factory=dict)
    note: str
    differences: tuple[Difference, ...] = ()


def trial_to_train(record: TrialRecord, overrides: Sequence[str]) -> tuple[TrialSpec, tuple[Difference, ...]]:
    """The recorded trial, with what `overrides` (``task.option=value``) say of its task.

    Raises:
        RefusedError: an override is no option of the task, or an option lost its credential and is not given again.
    """
    spec = spec_of(record.spec, record.run_id)
    if spec.start is not None:
        raise RefusedError(
            f"is a branch: it begins with a checkpoint of another trial, after {spec.start.samples_seen} samples",
            file=_FILE,
            key="start",
            value=spec.start.trajectory,
            remedy="replay a trial that begins afresh",
        )
    options = _overridden(spec.task.options, overrides)
    for name, value in options.items():
        if _is_masked(value):
            rule = "lost its credential when it was written down"
            remedy = f"give it again with --set task.{name}=..."
            raise ConfigError(rule, file=_FILE, key=f"task.{name}", value=value, remedy=remedy)
    found = [
        Difference(name=f"task/{name}", recorded=text_of(spec.task.options.get(name)), here=text_of(value))
        for name, value in options.items()
        if value != spec.task.options.get(name) and not _is_masked(spec.task.options.get(name))
    ]
    recorded_key = record.tags.get("orchestrator.trial_key", "")
    if spec.key != recorded_key and not any(_is_masked(value) for value in spec.task.options.values()):
        found.append(Difference(name="the spec's key", recorded=recorded_key, here=spec.key))
    return dataclasses.replace(spec, task=dataclasses.replace(spec.task, options=options)), tuple(found)


def choose_source(record: TrialRecord, task: str) -> Source:
    """The installed source of the task if it is the recorded one, else the recorded texts, else what there is.

    Raises:
        TaskError: the task is neither installed nor recorded.
    """
    module, recorded = module_of(task), record.param("task/source_hash") or UNKNOWN
    try:
        installed: str | None = task_source(module)[1]
    except TaskError:
        installed = None
    if installed == recorded:
        return Source(note=f"the installed source, which is the recorded one ({recorded})")
    ours = module.partition(".")[0] == "orchestrator"
    if record.source and not ours:
        kept = source_hash(record.source)
        lost = [Difference(name="task/source_hash", recorded=recorded, here=kept)] if kept != recorded else []
        here = f"the one installed here is another ({installed})" if installed else "none is installed here"
        return Source(
            files=dict(record.source), note=f"the recorded source ({recorded}); {here}", differences=tuple(lost)
        )
    if installed is None:
        rule = "the task must be importable, or its source be in the record"
        remedy = "bring the run of its sweep back, or start from the folder that holds the module"
        raise TaskError(rule, file=_FILE, key="task.name", value=task, remedy=remedy)
    changed = Difference(name="task/source_hash", recorded=recorded, here=installed)
    return Source(note=f"the installed source ({installed})", differences=(changed,))


def check_data(record: TrialRecord, spec: TrialSpec, overrides: Sequence[str]) -> str:
    """The fingerprint of the task's data, which is the recorded one.

    Raises:
        RefusedError: the data are others, or the task cannot be built.
    """
    recorded = record.param("data/fingerprint")
    looked_at = _looked_at(record, spec, overrides)
    here = check_task(load_task(spec.task.name, looked_at)).fingerprint
    if here != recorded:
        raise RefusedError(
            "the task's data must be those that the run was trained on",
            file=_FILE,
            key="data/fingerprint",
            value=f"{here}, was {recorded}",
            remedy="bring the data back; with other data it is another run",
        )
    if looked_at != spec.task.options:
        check_task(load_task(spec.task.name, spec.task.options))
    return here


def check_surroundings(record: TrialRecord, *, gpus: bool, accelerator: str) -> tuple[Difference, ...]:
    """Versions and hardware that are not as recorded, also those that changed while the run was trained.

    Args:
        gpus: whether workers train on accelerators.
        accelerator: what those here are called.
    """
    now = {f"software/{name}": text_of(value) for name, value in software_versions().items()}
    now["hardware/device"] = accelerator if gpus else cpu_name()
    found = [
        Difference(name=name, recorded=record.params[name], here=value)
        for name, value in now.items()
        if name.rpartition("/")[2] not in _NOT_COMPARED and record.params.get(name, value) != value
    ]
    if "continued" in record.tags:
        found += [
            Difference(name=name.removeprefix("changed/"), recorded=change, here="as it was at the beginning")
            for name, change in record.sweep_tags.items()
            if name.startswith("changed/") and name.rpartition("/")[2] not in _NOT_COMPARED
        ]
    return tuple(found)


def _looked_at(record: TrialRecord, spec: TrialSpec, overrides: Sequence[str]) -> dict[str, Any]:
    """The options that the sweep took the fingerprint of: the first of its space."""
    if not any(key.startswith("task.") for key in record.sweep_spec.get("space", {})):
        return spec.task.options
    first = next(iter(task_options(Reach(spec_from_dict(record.sweep_spec, file=_FILE)))))
    return _overridden(first, overrides)


def _overridden(options: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    document: dict[str, Any] = {"task": dict(options)}
    try:
        keys = apply_overrides(document, overrides)
    except Refusal as refusal:
        raise refusal.in_file(OVERRIDE_SOURCE) from None
    for key in keys:
        if not key.startswith("task.") or key == "task.name":
            rule = "a replay takes everything from the record, apart from the task's options"
            raise ConfigError(rule, file=OVERRIDE_SOURCE, key=key, remedy="leave it out, or start a sweep")
    return dict(document["task"])


def _is_masked(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_is_masked(part) for part in value.values())
    if isinstance(value, list | tuple):
        return any(_is_masked(part) for part in value)
    return isinstance(value, str) and (is_masked(value) or MASK in value)
