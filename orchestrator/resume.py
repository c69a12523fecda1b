"""Take on a sweep that was cut: ``python -m orchestrator.sweep --resume DIR``.

Finished trials are not trained again, the others go on from their checkpoints, and the search goes on as if it had
never been cut.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Collection, Iterable, Sequence

from orchestrator.cluster.session import connect, is_local
from orchestrator.config.load import OVERRIDE_SOURCE, load_spec, masked_keys
from orchestrator.config.reach import Reach
from orchestrator.config.spec import SweepSpec
from orchestrator.errors import ConfigError, RefusedError, ResourceError, StorageError
from orchestrator.past import Past
from orchestrator.preparation import Prepared, prepare
from orchestrator.report.console import Console
from orchestrator.sweep import sweep
from orchestrator.tracking.events import EventLog, is_written
from orchestrator.tracking.run_dir import SPEC, RunDir, holds_run

# What a run may be taken on with: everything that does not change what its trials compute.
FREE = ("cluster.", "checkpoint.", "tracking.", "search.trials", "search.seeds", "search.repeat_top")
_PATIENCE_S = 60.0  # for a driver that was just killed to let go of the record and of the cluster's resources
_POLL_S = 0.5


def resume(folder: str, overrides: Sequence[str]) -> int:
    """Take on the sweep in the run directory `folder`; returns the exit code.

    Raises:
        RefusedError: it holds no sweep, another process still writes to it, or something that decides results is not
            as it was.
    """
    if not holds_run(folder):
        rule, remedy = "the folder holds no sweep", "start one with --out, or name the run directory of a sweep"
        raise StorageError(rule, key="--resume", value=folder, remedy=remedy)
    run_dir = RunDir(folder, taken_on=True)
    file = str(run_dir.local / SPEC)
    hidden = masked_keys(file)  # credentials are never kept: they are given again
    loaded = load_spec(file, overrides)
    _check_overrides(loaded.set_keys, also=hidden)
    given_again = [text for text, key in zip(overrides, loaded.set_keys, strict=True) if key in hidden]
    prepared = prepare(loaded, file=file)
    _wait_for_the_record(run_dir)
    past = Past.read(run_dir.events)
    if past.started:
        _check_unchanged(prepared, past, file)
        _check_split(prepared.spec, file)
    prepared = dataclasses.replace(prepared, as_started=load_spec(file, given_again).spec)
    summary = run_dir.local / "summary.json"
    if _is_done(prepared, past) and summary.exists():
        with Console(sys.stdout) as console:
            console.finish(json.loads(summary.read_text()), run_dir.uri)
        return 0
    with contextlib.nullcontext() if is_local() else connect(prepared.modules) as session:
        _wait_for_resources(prepared)
        if session is not None:
            prepared.check_storage(folder, session)
        sweep(prepared, run_dir, past=past if past.started else None, overrides=overrides)
    return 0


def _check_overrides(keys: Iterable[str], *, also: Collection[str]) -> None:
    for key in keys:
        if key not in also and not any(key == free or (free.endswith(".") and key.startswith(free)) for free in FREE):
            allowed = ", ".join(free + "*" if free.endswith(".") else free for free in FREE)
            rule = f"a sweep is taken on with what it was started with, apart from {allowed}"
            raise ConfigError(rule, file=OVERRIDE_SOURCE, key=key, remedy="leave it out, or start a new sweep")


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


def _is_done(prepared: Prepared, past: Past) -> bool:
    history, spec = past.history, prepared.spec.search
    was = history.started.get("spec", {}).get("search", {})
    asked = (spec.trials, spec.seeds, spec.repeat_top) == (was.get("trials"), was.get("seeds"), was.get("repeat_top"))
    return asked and history.status == "done"
