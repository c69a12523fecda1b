"""Take on a run that was cut: ``python -m orchestrator.sweep --resume DIR``, or ``orchestrator.study``.

Finished trials are not trained again, the others go on from their checkpoints, and the search goes on as if it had
never been cut.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.cluster.session import connect, is_local
from orchestrator.config.load import OVERRIDE_SOURCE, Loaded, load_spec, masked_keys
from orchestrator.config.reach import Reach
from orchestrator.config.spec import SweepSpec
from orchestrator.errors import ConfigError, RefusedError, ResourceError, StorageError
from orchestrator.past import Past
from orchestrator.preparation import Prepared, prepare
from orchestrator.report.console import Console
from orchestrator.tracking.events import EventLog, first_event, is_written
from orchestrator.tracking.run_dir import SPEC, RunDir, holds_run

# What a run may always be taken on with, as it does not change what trials compute.
FREE = ("cluster.", "checkpoint.", "tracking.")
_PATIENCE_S = 60.0  # for a driver that was just killed to let go of the record and of the cluster's resources
_POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry point whose runs can be taken on.

    Attributes:
        name: ``sweep``, ``study`` or ``probe``.
        free: settings that a run of it may be taken on with, beside `FREE`; they decide how much is done.
        start: runs what is prepared: ``(prepared, out, past=, overrides=)``.
        finish: writes the last words again for a run that is done: ``(console, summary, uri)``.
        loaded: a spec as the entry point sees it, from the file's.
        again: whether a run that is done is started all the same, as something is asked that it did not tell.
    """

    name: str
    free: tuple[str, ...]
    start: Callable[..., None]
    finish: Callable[[Console, dict[str, Any], str], None] = Console.finish
    loaded: Callable[[Loaded], Loaded] = lambda loaded: loaded
    again: bool = False


def resume(folder: str, overrides: Sequence[str], entry: Entry) -> int:
    """Take on the run in the run directory `folder`; returns the exit code.

    Raises:
        RefusedError: it holds no such run, another process still writes to it, or something that decides results is not
            as it was.
    """
    if not holds_run(folder):
        rule = f"the folder holds no {entry.name}"
        remedy = f"start one with --out, or name the run directory of a {entry.name}"
        raise StorageError(rule, key="--resume", value=folder, remedy=remedy)
    run_dir = RunDir(folder, taken_on=True)
    _check_kind(run_dir, entry)
    file = str(run_dir.local / SPEC)
    hidden = masked_keys(file)  # credentials are never kept: they are given again
    loaded = entry.loaded(load_spec(file, overrides))
    _check_overrides(loaded.set_keys, entry, also=hidden)
    given_again = [text for text, key in zip(overrides, loaded.set_keys, strict=True) if key in hidden]
    prepared = prepare(loaded, file=file)
    _wait_for_the_record(run_dir)
    past = Past.read(run_dir.events)
    if past.started:
        _check_unchanged(prepared, past, file)
        _check_split(prepared.spec, file)
    prepared = dataclasses.replace(prepared, as_started=entry.loaded(load_spec(file, given_again)).spec)
    summary = run_dir.local / "summary.json"
    told = json.loads(summary.read_text()) if summary.exists() else {}
    # A run whose results could not be told is trained, and yet not done.
    if not entry.again and _is_done(prepared, past, entry) and told.get("status") == "done":
        with Console(sys.stdout) as console:
            entry.finish(console, told, run_dir.uri)
        return 0
    with contextlib.nullcontext() if is_local() else connect(prepared.modules) as session:
        _wait_for_resources(prepared)
        if session is not None:
            prepared.check_storage(folder, session)
        entry.start(prepared, run_dir, past=past if past.started else None, overrides=overrides)
    return 0


def _check_kind(run_dir: RunDir, entry: Entry) -> None:
    started = first_event(run_dir.events, "sweep_started") if run_dir.events.exists() else None
    kinds = ("study", "probe")
    kind = entry.name if started is None else next((name for name in kinds if name in started), "sweep")
    if kind != entry.name:
        remedy = f"python -m orchestrator.{kind} --resume takes it on"
        raise StorageError(f"the folder holds a {kind}", key="--resume", value=run_dir.uri, remedy=remedy)


def _check_overrides(keys: Iterable[str], entry: Entry, *, also: Collection[str]) -> None:
    every = (*FREE, *entry.free)
    for key in keys:
        if key not in also and not any(key == free or (free.endswith(".") and key.startswith(free)) for free in every):
            allowed = ", ".join(free + "*" if free.endswith(".") else free for free in every)
            rule = f"a {entry.name} is taken on with what it was started with, apart from {allowed}"
            raise ConfigError(rule, file=OVERRIDE_SOURCE, key=key, remedy=f"leave it out, or start a new {entry.name}")


def _check_unchanged(prepared: Prepared, past: Past, file: str) -> None:
    """The data decide every result, so trials before and after must have seen the same."""
    before, now = past.started["facts"].get("fingerprint"), prepared.facts.fingerprint
    if before != now:
        raise RefusedError(
            "the task's data must be those that the sweep was started with",
            file=file,
            key="task.name",
            value=f"{prepared.spec.task.name} with fingerprint {now}, was {before}",
            remedy="bring the data back, or start a new sweep",
        )


def _check_split(spec: SweepSpec, file: str) -> None:
    workers = spec.cluster.workers
    for batch in sorted({int(value) for value in Reach(spec).values("batch.global")}):
        if batch % workers:
            rule = f"global batch {batch} must be a multiple of the workers: it is never rounded"
            remedy = "use a number of workers that divides every batch"
            raise ConfigError(rule, file=file, key="cluster.workers", value=workers, remedy=remedy)


def _wait_for_the_record(run_dir: RunDir) -> None:
    """Whoever was killed a moment ago may not be quite gone."""
    deadline = time.monotonic() + _PATIENCE_S
    while run_dir.events.exists() and is_written(run_dir.events) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    EventLog(run_dir.events).close()


def _wait_for_resources(prepared: Prepared) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return prepared.check_resources()
        except ResourceError:
            if is_local() or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)


def _is_done(prepared: Prepared, past: Past, entry: Entry) -> bool:
    now, was = prepared.spec.to_dict(), past.started.get("spec", {})
    return past.history.status == "done" and all(_at(now, key) == _at(was, key) for key in entry.free)


def _at(spec: Any, key: str) -> Any:
    """The setting `key` of a spec as it stands in YAML; None where it is not there."""
    for name in key.split("."):
        spec = spec.get(name) if isinstance(spec, dict) else None
    return spec
