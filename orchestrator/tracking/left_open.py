"""Closes runs of this machine that still read RUNNING although whatever kept them is gone, killed beyond reaction."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from orchestrator.tracking.cursor import cursor_path, lock_path
from orchestrator.tracking.maker import HOST, RUN_DIR
from orchestrator.tracking.mlflow_client import Connection

REASON = "its sweep ended without a word; a later start found it"


def close_left_open(connection: Connection, experiment: str, *, tags: dict[str, str], sweep_id: str | None) -> int:
    """Close, as KILLED, running sweeps of this machine that nobody keeps any more, with their trials.

    Those of other machines, and those whose record or cursor is locked by a living process, are left alone. Whoever
    takes such a sweep on, or sends the rest of its record, opens again what it needs.

    Args:
        connection: where to look.
        experiment: name of the experiment.
        tags: `maker.maker_tags` of the sweep that looks.
        sweep_id: that sweep's identity, if it is known; another sweep of the same folder was replaced by it.

    Returns:
        How many sweeps were closed.
    """
    experiment_id = connection.find_experiment(experiment)
    if experiment_id is None:
        return 0
    closed = 0
    for run_id, found in connection.running(experiment_id, {"orchestrator.kind": "sweep", HOST: tags[HOST]}):
        folder = found.get(RUN_DIR)
        if folder is None:
            continue
        if folder == tags[RUN_DIR]:
            if sweep_id is not None and found.get("orchestrator.sweep_id") != sweep_id:
                _close(connection, experiment_id, run_id)
                closed += 1
            continue
        with _kept_by_nobody(Path(folder) / "events.jsonl") as alone:
            if alone:
                _close(connection, experiment_id, run_id)
                closed += 1
    return closed


def _close(connection: Connection, experiment_id: str, parent: str) -> None:
    # The parent comes last: as long as it runs, a start that was cut short here is made up for by the next one.
    for run_id, _ in connection.running(experiment_id, {"mlflow.parentRunId": parent}):
        connection.end(run_id, "KILLED", time.time())
        connection.log(run_id, tags={"status": "killed", "reason": REASON})
    connection.log(parent, tags={"status": "killed", "reason": REASON})
    connection.end(parent, "KILLED", time.time())


@contextlib.contextmanager
def _kept_by_nobody(log: Path) -> Iterator[bool]:
    """Whether no sweep writes the log and no writer sends it; while this lasts, a writer that starts waits."""
    with contextlib.ExitStack() as held:
        try:
            log.stat()
        except (FileNotFoundError, NotADirectoryError):  # the folder is gone
            yield True
            return
        except OSError:
            yield False
            return
        alone = _free(lock_path(cursor_path(log)), fcntl.LOCK_EX, held)
        with contextlib.ExitStack() as briefly:
            alone = alone and _free(log, fcntl.LOCK_SH, briefly)
        yield alone


def _free(path: Path, kind: int, held: contextlib.ExitStack) -> bool:
    """Lock a file for as long as `held`; False if another holds it, or if nothing can be found out."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    held.callback(os.close, fd)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
