"""The runs of one sweep in MLflow: made, reopened, closed. A trial's run never runs while its sweep's does not."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.tracking.cursor import Cursor, RunState
from orchestrator.tracking.mlflow_client import Connection
from orchestrator.tracking.patience import Patience

_IDENTITY = ("orchestrator.sweep_id", "orchestrator.kind", "orchestrator.trial_key")


class Runs:
    """Keeps the status of a parent run and its child runs, and notes it in `cursor`.

    Args:
        connection: where to.
        persist: repeats a call until it works or is refused for good.
        cursor: what is known from before; changed in place.
        maker: tags that every run gets, by which a later start recognises ours.
    """

    def __init__(self, connection: Connection, persist: Patience, cursor: Cursor, maker: Mapping[str, str]) -> None:
        self._mlflow, self._persist, self._cursor, self._maker = connection, persist, cursor, maker
        # Another start may have closed what an earlier writer of this sweep left open, so its word is not enough.
        self._surely_open: set[str] = set()
        self._closed_early: set[str] = set()
        self.hurried = False

    def create(self, name: str, at_s: float, tags: Mapping[str, str]) -> str | None:
        """A new run, or the one that an earlier try made; None if it was refused for good."""
        experiment = self._cursor.experiment_id
        if experiment is None:
            return None
        known_by = [key for key in _IDENTITY if key in tags]
        whole = {**tags, **self._maker}
        made = self._persist(f"run {name!r}", lambda: self._mlflow.run(experiment, name, at_s, whole, known_by))
        if made is not None:
            self._surely_open.add(made)
        return made

    def reopen(self, run: RunState) -> None:
        """Let a trial's run go on, and its sweep's with it. In a hurry it stays closed: there is nobody to close it."""
        if self.hurried:
            return
        self.reopen_sweep()
        if not run.open or run.run_id not in self._surely_open:
            self._reopen(run.run_id)
            run.open = True

    def reopen_sweep(self) -> None:
        """Let the sweep's run go on."""
        parent = self._cursor.parent_run_id
        if self.hurried or parent is None or (self._cursor.parent_open and parent in self._surely_open):
            return
        self._reopen(parent)
        self._cursor.parent_open = True

    def end(self, run: RunState, status: str, at_s: float, what: str) -> None:
        """Close a trial's run with MLflow's `status`."""
        self._persist(f"status of {what}", lambda: self._mlflow.end(run.run_id, status, at_s))
        run.open = False
        self._closed_early.discard(run.run_id)

    def close_early(self, at_s: float) -> None:
        """Close as KILLED, before anything else is sent, what is running: there may be no time to do it in its turn.

        What the log still says of a run is added to it while it is closed.
        """
        self.hurried = True
        for run in self._open_runs():
            self._kill(run.run_id, at_s)
            run.open = False
        if self._cursor.parent_run_id and self._cursor.parent_open:
            self._kill(self._cursor.parent_run_id, at_s)
            self._cursor.parent_open = False

    def close(self, status: str, at_s: float, *, parent_status: str, reason: str = "") -> None:
        """Close what is still running: trials as KILLED, the sweep as `parent_status`, tagged with `status`."""
        for run in self._open_runs():
            self._end(run.run_id, "KILLED", at_s, {"status": "killed", "reason": reason})
            run.open = False
        parent = self._cursor.parent_run_id
        if parent and (self._cursor.parent_open or parent in self._closed_early):
            self._end(parent, parent_status, at_s, {"status": status})
            self._cursor.parent_open = False
        self._closed_early.clear()

    def _open_runs(self) -> list[RunState]:
        return [run for run in self._cursor.runs.values() if run.open or run.run_id in self._closed_early]

    def _kill(self, run_id: str, at_s: float) -> None:
        if run_id not in self._closed_early:
            self._persist(f"status of run {run_id}", lambda: self._mlflow.end(run_id, "KILLED", at_s))
            self._closed_early.add(run_id)

    def _end(self, run_id: str, status: str, at_s: float, tags: Mapping[str, str]) -> None:
        said = {key: value for key, value in tags.items() if value}
        self._persist(f"tags of run {run_id}", lambda: self._mlflow.log(run_id, tags=said))
        self._persist(f"status of run {run_id}", lambda: self._mlflow.end(run_id, status, at_s))

    def _reopen(self, run_id: str) -> None:
        self._persist(f"reopening run {run_id}", lambda: self._mlflow.reopen(run_id, self._maker))
        self._surely_open.add(run_id)
        self._closed_early.discard(run_id)
