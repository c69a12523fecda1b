"""The driver's side of MLflow: starts the writer process, says how it is doing, and drains it at the end.

Nothing here blocks the training path: events reach the writer through the log on disk.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from orchestrator.tracking.cursor import cursor_path, load_cursor
from orchestrator.tracking.events import EventLog, read_lines
from orchestrator.tracking.writer import SENT, SENT_UNSAVED, Job

MOST_STARTS = 5
_RESTART_PAUSE_S = 1.0
# The writer ends this much earlier than it is killed, to end in order.
_MARGIN_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Left:
    """What MLflow does not have when a tracker is closed.

    Args:
        events: events at the end of the log that were not sent for certain.
        problem: what stood in the way, or None.
        dropped: what MLflow refused for good.
        log_path: the log, which has everything.
        unsaved: why the writer could not keep its own files, or None.
    """

    events: int
    problem: str | None
    dropped: tuple[str, ...]
    log_path: str
    unsaved: str | None = None

    @property
    def delivered(self) -> bool:
        """Whether MLflow has everything."""
        return not self.events and not self.dropped

    @property
    def nothing(self) -> bool:
        """Whether MLflow has everything, and all went as it should."""
        return self.delivered and self.unsaved is None

    def __str__(self) -> str:
        parts = ["MLflow has everything"] if self.delivered else []
        if self.unsaved:
            parts.append(f"The MLflow writer could not keep its own files ({self.unsaved})")
        if self.events:
            because = f" ({self.problem})" if self.problem else ""
            parts.append(
                f"MLflow has not received the last {self.events} events{because}; they are safe in {self.log_path}, "
                f"and `python -m orchestrator.sync {Path(self.log_path).parent}` sends them"
            )
        if self.dropped:
            parts.append(f"MLflow refused {len(self.dropped)} things, first: {self.dropped[0]}")
        return ". ".join(parts)


class Tracker:
    """Sends a log to MLflow in a process of its own, from the first event that was not sent yet.

    MLflow's import, its environment and its output stay in that process. If it dies it is started again, at most
    `MOST_STARTS` times in all.

    Args:
        log: the events, or the path of their file if another process appends to it.
        uri: as `tracking.uri.check_uri` gave it.
        experiment: name of the MLflow experiment.
    """

    def __init__(self, log: EventLog | Path, *, uri: str, experiment: str) -> None:
        self._log = log if isinstance(log, EventLog) else None
        self._log_path = log.path if isinstance(log, EventLog) else log.absolute()
        self._job = Job(path=os.fspath(self._log_path), uri=uri, experiment=experiment)
        self._cursor_path = cursor_path(self._log_path)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._starts = 0
        self._deadline = math.inf
        self._unlogged: str | None = None
        self._process = self._spawn()
        self._watch = threading.Thread(target=self._supervise, name="mlflow-writer-watch", daemon=True)
        self._watch.start()

    @property
    def pid(self) -> int:
        """Process id of the writer."""
        return self._process.pid

    @property
    def parent_run_id(self) -> str | None:
        """The sweep's run, once it is made."""
        return load_cursor(self._cursor_path).parent_run_id

    @property
    def experiment_id(self) -> str | None:
        """The experiment, once it is known."""
        return load_cursor(self._cursor_path).experiment_id

    @property
    def problem(self) -> str | None:
        """What keeps the writer waiting now, as a sentence; None if nothing does."""
        return load_cursor(self._cursor_path).problem

    def left(self) -> Left:
        """What MLflow does not have at this moment, as far as the writer has noted."""
        cursor, code = load_cursor(self._cursor_path), self._process.poll()
        rest = read_lines(self._log_path, cursor.offset) if self._log_path.exists() else []
        events = 0 if code == SENT_UNSAVED else len(rest)
        return Left(
            events=events,
            problem=cursor.problem if events else None,
            dropped=tuple(cursor.dropped),
            log_path=os.fspath(self._log_path),
            unsaved=f"{self._cursor_path} cannot be written" if code == SENT_UNSAVED else self._unlogged,
        )

    def close(self, timeout_s: float = 30.0) -> Left:
        """Wait until everything is sent, at most `timeout_s` seconds, then end the writer and say what is left.

        Runs that the log left open are closed as KILLED; if there is little time, that comes before the rest is sent.
        What is not sent stays in the log. Closing twice is fine.
        """
        with self._lock:
            self._closing.set()
            self._deadline = min(self._deadline, time.monotonic() + timeout_s)
            self._say_close(self._process)
        self._watch.join(max(0.0, self._deadline - time.monotonic()))
        with self._lock:
            self._starts = MOST_STARTS
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
        return self.left()

    def _supervise(self) -> None:
        while True:
            code = self._process.wait()
            with self._lock:
                if code in (SENT, SENT_UNSAVED) or self._starts >= MOST_STARTS:
                    return
            time.sleep(_RESTART_PAUSE_S)
            with self._lock:
                if self._starts >= MOST_STARTS:
                    return
                self._process = self._spawn()
                if self._closing.is_set():
                    self._say_close(self._process)

    def _spawn(self) -> subprocess.Popen[str]:
        self._starts += 1
        with self._output() as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.tracking.writer"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                env=_environment(),
                # Ctrl-C reaches the driver alone, which then drains the writer; `ray job stop` finds it all the same.
                start_new_session=True,
            )
        assert process.stdin is not None
        # The address may hold a password, so it goes neither into the arguments nor into the environment.
        process.stdin.write(json.dumps(dataclasses.asdict(self._job)) + "\n")
        process.stdin.flush()
        return process

    def _output(self) -> IO[str]:
        """Where the writer's own words go; a full disk must cost these and nothing else."""
        path = self._log_path.with_name("mlflow_writer.log")
        try:
            return path.open("a")
        except OSError as error:
            self._unlogged = f"{path}: {error.strerror}"
            return open(os.devnull, "w")

    def _say_close(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        left_s = max(0.0, self._deadline - time.monotonic() - _MARGIN_S)
        try:
            if not process.stdin.closed:
                process.stdin.write(f"close {left_s:.3f}\n")
                process.stdin.close()
        except BrokenPipeError:
            pass


def _environment() -> dict[str, str]:
    package_folder = os.fspath(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH")
    return {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
        **os.environ,
        "PYTHONPATH": os.pathsep.join([package_folder, *([given] if given else [])]),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
        # The writer retries on its own: MLflow's retry of a create call whose answer was lost makes a second run.
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        # It would print the server's address with its password at the end of each run, after asking for the run again.
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    }
