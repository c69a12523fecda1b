"""The one process that writes to MLflow: it follows the event log on disk and remembers how far it came.

Started by `tracking.tracker`: ``python -m orchestrator.tracking.writer``, with its job as one line of JSON on stdin.
A second line ``close SECONDS`` says that the log is complete; stdin ending without it says that the driver is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import StorageError
from orchestrator.tracking.cursor import Cursor, cursor_path, load_cursor, lock_path, save_cursor
from orchestrator.tracking.events import Event, first_event, read_lines
from orchestrator.tracking.left_open import close_left_open
from orchestrator.tracking.maker import maker_tags
from orchestrator.tracking.mlflow_client import Connection
from orchestrator.tracking.orders import Orders
from orchestrator.tracking.params import described_after, sweep_id_of
from orchestrator.tracking.patience import Patience
from orchestrator.tracking.projection import Projection
from orchestrator.tracking.uri import scrub

POLL_S = 0.1
CHUNK_EVENTS = 500
_MOST_DROPPED = 50

# Exit codes, for the tracker.
SENT, NOT_SENT, SENT_UNSAVED = 0, 1, 3


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a writer is to do: send the log at `path` to `uri`, under `experiment`."""

    path: str
    uri: str
    experiment: str


class Writer:
    """Follows one log until it is complete.

    If its own notes cannot be saved it says so once and goes on: without them a later writer sends again what is in
    MLflow already, which changes nothing.

    Args:
        job: what to do.
        orders: whether the log is complete, and how much time there is.
    """

    def __init__(self, job: Job, orders: Orders) -> None:
        self._job, self._orders = job, orders
        self._log = Path(job.path)
        self._cursor_path = cursor_path(self._log)
        self._cursor = load_cursor(self._cursor_path)
        self._committed = _copy(self._cursor)
        self.unsaved = False

    def run(self) -> bool:
        """Send everything, and close every run that the log left open. False if there was no time for all of it.

        Raises:
            StorageError: if the log is broken.
            Abandoned: if time ran out while the server was away.
        """
        connected: list[Connection] = []
        persist = Patience(
            alive=lambda: bool(connected) and connected[0].answers(),
            orders=self._orders,
            on_problem=self._note_problem,
            on_refused=self._note_refusal,
        )
        connection = persist("connection", lambda: Connection(self._job.uri))
        assert connection is not None, "without an answer no refusal counts"
        connected.append(connection)
        maker = maker_tags(self._log)
        projection = Projection(
            connection,
            persist,
            self._cursor,
            experiment=self._job.experiment,
            maker=maker,
            description=_description(self._log, self._cursor.offset),
        )
        if not self._orders.hurried:
            own = self._own_sweep_id()
            persist(
                "a look for runs left open",
                lambda: close_left_open(connection, self._job.experiment, tags=maker, sweep_id=own),
                upload=True,  # whatever is wrong with others' runs must not keep ours waiting
            )
        self._follow(projection)
        if self._orders.stopped:
            return False
        projection.close(time.time(), "the sweep ended without a word")
        self._commit()
        return True

    def _follow(self, projection: Projection) -> None:
        closed_early = False
        while not self._orders.stopped:
            hurried = self._orders.hurried
            if hurried and not closed_early:
                projection.close_early(time.time())
                self._commit()
                closed_early = True
            # Asked for before reading: what was appended before the log was complete is then read.
            complete = self._orders.complete.is_set()
            lines = read_lines(self._log, self._cursor.offset, CHUNK_EVENTS) if self._log.exists() else []
            if lines:
                for line in lines:
                    projection.apply(line.event)
                    end = line.end
                    if self._orders.stopped or (self._orders.hurried and not hurried):
                        break
                projection.flush()
                self._cursor.offset = end
                self._commit()
            elif complete:
                return
            else:
                self._orders.complete.wait(POLL_S)

    def _own_sweep_id(self) -> str | None:
        if self._cursor.sweep_id is not None:
            return self._cursor.sweep_id
        started = first_event(self._log, "sweep_started") if self._log.exists() else None
        return None if started is None else sweep_id_of(started)

    def _commit(self) -> None:
        self._committed = _copy(self._cursor)
        self._save()

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
        self._save()

    def _save(self) -> None:
        try:
            save_cursor(self._cursor_path, self._committed)
            self.unsaved = False
        except StorageError as error:
            if not self.unsaved:
                _say(f"{error} Goes on without.")
            self.unsaved = True


def _copy(cursor: Cursor) -> Cursor:
    runs = {
        key: dataclasses.replace(run, reused_by=list(run.reused_by), plan=dict(run.plan))
        for key, run in cursor.runs.items()
    }
    return dataclasses.replace(
        cursor, runs=runs, keys=dict(cursor.keys), counts=dict(cursor.counts), dropped=list(cursor.dropped)
    )


def _description(log: Path, offset: int) -> Event | None:
    """What the first `offset` bytes of a log say about how the sweep runs."""
    found: Event | None = None
    for line in read_lines(log) if offset else []:
        if line.end > offset:
            break
        if line.event["event"] == "sweep_started":
            found = found or line.event
        elif line.event["event"] == "sweep_resumed":
            found = described_after(found, line.event)
    return found


@contextlib.contextmanager
def _locked(path: Path, orders: Orders) -> Iterator[bool]:
    """Hold the cursor's lock, so that a writer that outlived its driver is done before the next one starts.

    False if that took all the time there was.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        _say(f"{path}: cannot be locked ({error.strerror}). Goes on without.")
        yield True
        return
    try:
        free = False
        while not free and not orders.stopped:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = True
            except BlockingIOError:
                orders.pause(POLL_S)
            except OSError:  # some network filesystems cannot lock
                free = True
        yield free
    finally:
        os.close(fd)


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError):  # there may be no room for it
        print(sentence, file=sys.stderr, flush=True)


def main() -> int:
    """Run one job from stdin; the exit code."""
    orders = Orders()
    orders.obey_signals()
    job = Job(**json.loads(sys.stdin.readline()))
    threading.Thread(target=orders.obey_driver, args=(sys.stdin,), daemon=True).start()
    try:
        with _locked(lock_path(cursor_path(Path(job.path))), orders) as free:
            writer = Writer(job, orders)
            if not free or not writer.run():
                return NOT_SENT
            return SENT_UNSAVED if writer.unsaved else SENT
    except Exception as error:  # noqa: BLE001 - a traceback could show the password in the address
        _say(f"{type(error).__name__}: {scrub(str(error), job.uri)}")
        return NOT_SENT


if __name__ == "__main__":
    code = main()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    # MLflow's and SQLAlchemy's threads have nothing left to do; waiting for them could take minutes.
    os._exit(code)
