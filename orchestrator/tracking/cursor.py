"""How far the event log has been sent to MLflow, and under which run ids; kept beside the log, replaced atomically."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.storage import write_atomically


@dataclass(kw_only=True)
class RunState:
    """A trial's run, as far as it was sent.

    Args:
        global_batch: samples an update.
        target: the trial's target as a dict, or None.
        samples_seen: at the last evaluation, -1 before the first.
        target_reached: whether an evaluation reached the target.
        open: whether the run is running in MLflow.
        reused_by: ids of later, equal suggestions.
        plan: how the spec splits the batch.
        interrupted: how often its gang broke or had to leave.
        continued: how often it went on after that.
    """

    run_id: str
    global_batch: int
    target: dict[str, Any] | None = None
    samples_seen: int = -1
    target_reached: bool = False
    open: bool = True
    reused_by: list[str] = field(default_factory=list)
    plan: dict[str, Any] = field(default_factory=dict)
    interrupted: int = 0
    continued: int = 0


@dataclass(kw_only=True)
class Cursor:
    """What the writer must remember.

    Args:
        offset: bytes of the log whose events are all in MLflow.
        runs: by trial key.
        keys: trial key by trial id.
        counts: ended trials by status, and ``reused``.
        total_samples: samples seen by all ended trials together.
        resumed: how often the sweep was taken on.
        problem: what stands in the way now, in a sentence; None if nothing does.
        dropped: what MLflow refused for good.
    """

    offset: int = 0
    sweep_id: str | None = None
    experiment_id: str | None = None
    parent_run_id: str | None = None
    parent_open: bool = False
    runs: dict[str, RunState] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    total_samples: int = 0
    resumed: int = 0
    problem: str | None = None
    dropped: list[str] = field(default_factory=list)

    def run_of(self, trial: str) -> RunState | None:
        """The run of a trial id, if it has one."""
        return self.runs.get(self.keys.get(trial, ""))


def cursor_path(log_path: Path) -> Path:
    """The cursor of a log."""
    return log_path.with_name("mlflow_cursor.json")


def lock_path(cursor: Path) -> Path:
    """The file that a cursor's one writer holds locked."""
    return cursor.with_name(cursor.name + ".lock")


def load_cursor(path: Path) -> Cursor:
    """The cursor at `path`, or a new one if it is missing or unreadable: sending again changes nothing."""
    try:
        raw: dict[str, Any] = json.loads(path.read_bytes())
        raw["runs"] = {key: RunState(**state) for key, state in raw["runs"].items()}
        return Cursor(**raw)
    except (OSError, ValueError, TypeError, KeyError):
        return Cursor()


def save_cursor(path: Path, cursor: Cursor) -> None:
    """Replace the cursor at `path`."""
    write_atomically(os.fspath(path), json.dumps(dataclasses.asdict(cursor)).encode())
