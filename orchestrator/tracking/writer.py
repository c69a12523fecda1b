"""The one process that writes to MLflow: it follows the event log on disk and remembers how far it came.

Started by `tracking.tracker`: ``python -m orchestrator.tracking.writer``, with its job as one line of JSON on stdin.
A second line ``close`` says that the log is complete; stdin ending without it says that the driver is gone.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from orchestrator.tracking.cursor import Cursor, cursor_path, load_cursor, save_cursor
from orchestrator.tracking.events import first_event, read_lines
from orchestrator.tracking.mlflow_client import Connection
from orchestrator.tracking.patience import Patience
from orchestrator.tracking.projection import Projection
from orchestrator.tracking.uri import scrub

POLL_S = 0.1
CHUNK_EVENTS = 500
ORPHAN_S = 60.0
_MOST_DROPPED = 50


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a writer is to do: send the log at `path` to `uri`, under `experiment`."""

    path: str
    uri: str
    experiment: str


class Writer:
    """Follows one log until it is complete.

    Args:
        job: what to do.
        complete: set when nothing will be appended any more.
        stop: set when there is no more time; the writer then ends with things left.
    """

    def __init__(self, job: Job, *, complete: threading.Event, stop: threading.Event) -> None:
        self._job, self._complete, self._stop = job, complete, stop
        self._log = Path(job.path)
        self._cursor_path = cursor_path(self._log)
        self._cursor = load_cursor(self._cursor_path)
        self._committed = _copy(self._cursor)

    def run(self) -> bool:
        """Send everything, and close every run that the log left open. False if it was stopped before.

        Raises:
            StorageError: if the log is broken.
            Abandoned: if `stop` was set while the server was away.
        """
        connected: list[Connection] = []
        persist = Patience(
            alive=lambda: bool(connected) and connected[0].answers(self._cursor.experiment_id),
            stop=self._stop,
            on_problem=self._note_problem,
            on_refused=self._note_refusal,
        )
        connection = persist("connection", lambda: Connection(self._job.uri))
        assert connection is not None, "without an answer no refusal counts"
        connected.append(connection)
        described = first_event(self._log, "sweep_started") if self._cursor.offset else None
        projection = Projection(
            connection, persist, self._cursor, experiment=self._job.experiment, sweep_started=described
        )
        self._follow(projection)
        if self._stop.is_set():
            return False
        projection.close_open_runs("killed", time.time(), reason="the sweep ended without a word")
        self._commit()
        return True

    def _follow(self, projection: Projection) -> None:
        while not self._stop.is_set():
            # Asked for before reading: what was appended before the log was complete is then read.
            complete = self._complete.is_set()
            lines = read_lines(self._log, self._cursor.offset, CHUNK_EVENTS) if self._log.exists() else []
            if lines:
                for line in lines:
                    projection.apply(line.event)
                projection.flush()
                self._cursor.offset = lines[-1].end
                self._commit()
            elif complete:
                return
            else:
                self._complete.wait(POLL_S)

    def _commit(self) -> None:
        self._committed = _copy(self._cursor)
        save_cursor(self._cursor_path, self._committed)

    def _note_problem(self, sentence: str | None) -> None:
        sentence = scrub(sentence, self._job.uri)[:1000] if sentence else None
        if sentence != self._cursor.problem:
            self._cursor.problem = sentence
            self._save_notes()

    def _note_refusal(self, sentence: str) -> None:
        self._cursor.dropped = [*self._cursor.dropped, scrub(sentence, self._job.uri)[:1000]][-_MOST_DROPPED:]
        self._save_notes()

    def _save_notes(self) -> None:
        # Only the notes: the rest of the cursor is ahead of what was sent until the chunk is through.
        self._committed.problem, self._committed.dropped = self._cursor.problem, list(self._cursor.dropped)
        save_cursor(self._cursor_path, self._committed)


def _copy(cursor: Cursor) -> Cursor:
    runs = {key: dataclasses.replace(run, reused_by=list(run.reused_by)) for key, run in cursor.runs.items()}
    return dataclasses.replace(
        cursor, runs=runs, keys=dict(cursor.keys), counts=dict(cursor.counts), dropped=list(cursor.dropped)
    )


def _watch_driver(stdin: TextIO, complete: threading.Event, stop: threading.Event) -> None:
    said_so = any(line.strip() == "close" for line in stdin)
    complete.set()
    if not said_so and not stop.wait(ORPHAN_S):
        stop.set()


def _lock(path: Path, stop: threading.Event) -> Any:
    """Hold the cursor's lock, so that a writer that outlived its driver is done before the next one starts."""
    file = path.with_name(path.name + ".lock").open("w")
    while not stop.is_set():
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            stop.wait(POLL_S)
    return file


def main() -> int:
    """Run one job from stdin; 0 if everything was sent."""
    job = Job(**json.loads(sys.stdin.readline()))
    complete, stop = threading.Event(), threading.Event()
    threading.Thread(target=_watch_driver, args=(sys.stdin, complete, stop), daemon=True).start()
    try:
        with _lock(cursor_path(Path(job.path)), stop):
            return 0 if Writer(job, complete=complete, stop=stop).run() else 1
    except Exception as error:  # noqa: BLE001 - a traceback could show the password in the address
        print(f"{type(error).__name__}: {scrub(str(error), job.uri)}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # MLflow's and SQLAlchemy's threads have nothing left to do; waiting for them could take minutes.
    os._exit(code)
