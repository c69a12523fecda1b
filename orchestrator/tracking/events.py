"""The durable record of a sweep: one JSON object a line in ``events.jsonl``.

MLflow, the Parquet tables and the console are projections of this file: nothing is there that was not here first.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from orchestrator.credentials import hide, secrets_of
from orchestrator.errors import StorageError
from orchestrator.mirror import Mirror

SCHEMA_VERSION = 1

Event = dict[str, Any]


class Line(NamedTuple):
    """An event, and the offset in bytes of the line after it."""

    event: Event
    end: int


class EventLog:
    """Appends events to `path`, each durable before `append` returns. Thread-safe; a log has one writer at a time.

    A last line that was cut off by a crash is removed on opening: it was never acknowledged. Credentials are taken out
    of every text: what is made from the log cannot show them.

    Args:
        path: the local file.
        mirror_uri: a folder on another filesystem where each event is kept as well before it counts as durable; what
            the file holds already must be there.

    Raises:
        StorageError: if the file cannot be opened, is open for appending elsewhere, or is broken before its last line.
    """

    def __init__(self, path: str | Path, mirror_uri: str | None = None) -> None:
        self.path = Path(path).absolute()
        self._lock = threading.RLock()
        self._secrets = secrets_of(os.environ)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            _lock(self._fd, self.path)
            self._size = _end_of_whole_lines(self.path)
            os.ftruncate(self._fd, self._size)
            _sync_folder(self.path.parent)
            self._mirror = mirror_uri and Mirror(self.path, mirror_uri, sent=self._size)
        except OSError as error:
            raise StorageError(
                f"the record of the sweep must be writable ({error.strerror})",
                key="--out",
                value=str(self.path),
                remedy="choose a folder that you may write to",
            ) from error

    def append(self, event: str, **fields: Any) -> Event:
        """Write one event, with its time.

        Args:
            event: its kind, such as ``evaluation``.
            fields: JSON values; NumPy scalars are taken as their Python value.

        Returns:
            The event as it was written.

        Raises:
            ValueError: if a number is not finite: the caller leaves such a number out, so that it never looks like a
                measurement.
            TypeError: if a value has no JSON form.
            StorageError: if the disk refuses; the log is then as it was before.
        """
        record = hide({"t": time.time(), "event": event, **fields}, self._secrets)
        try:
            text = json.dumps(record, allow_nan=False, separators=(",", ":"), default=_plain)
        except ValueError as error:
            raise ValueError(f"event {event!r}: every number must be finite ({error}); leave the others out") from error
        with self._lock:
            self._write(text.encode() + b"\n")
        written: Event = json.loads(text)
        return written

    @property
    def size_bytes(self) -> int:
        """Length of the log, all of it durable."""
        with self._lock:
            return self._size

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
            if self._mirror:
                self._mirror.push()
        except (OSError, StorageError) as error:
            self._take_back()
            cause = error.strerror if isinstance(error, OSError) else error
            raise StorageError(
                f"the record of the sweep must stay writable ({cause})",
                value=str(self.path),
                remedy="free space on its disk, then run the same command again",
            ) from error
        self._size += len(line)

    def _take_back(self) -> None:
        """Remove what was written of a line; if that fails too, write no more: a torn line must be the last."""
        try:
            if self._fd >= 0:
                os.ftruncate(self._fd, self._size)
        except OSError:
            self.close()


def read_events(path: str | Path) -> list[Event]:
    """All events of a log, oldest first. A torn last line is left out.

    Raises:
        StorageError: if the file is missing or unreadable, or if a line before the last is broken.
    """
    return [line.event for line in read_lines(path)]


def read_lines(path: str | Path, start: int = 0, limit: int | None = None) -> list[Line]:
    """At most `limit` whole lines from the offset `start` in bytes, which must be the start of a line."""
    lines: list[Line] = []
    for line in _lines(Path(path), start):
        lines.append(line)
        if limit is not None and len(lines) >= limit:
            break
    return lines


def first_event(path: str | Path, kind: str) -> Event | None:
    """The oldest event of a kind, or None."""
    return next((line.event for line in _lines(Path(path), 0) if line.event["event"] == kind), None)


def is_written(path: Path) -> bool:
    """Whether a process has the log open for appending; False where files cannot be locked."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def _lines(path: Path, start: int) -> Iterator[Line]:
    try:
        with path.open("rb") as file:
            file.seek(start)
            end = start
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                event = _parse(raw)
                if event is None:
                    if file.read(1):
                        raise StorageError(
                            f"line at byte {end} must be one JSON object",
                            file=str(path),
                            value=raw[:80].decode(errors="replace"),
                            remedy="restore the file; only its last line may be cut off",
                        )
                    return
                end += len(raw)
                yield Line(event, end)
    except OSError as error:
        raise StorageError(f"the record of a sweep must be readable ({error.strerror})", file=str(path)) from error


def _end_of_whole_lines(path: Path) -> int:
    end = 0
    for line in _lines(path, 0):
        end = line.end
    return end


def _parse(raw: bytes) -> Event | None:
    try:
        event = json.loads(raw)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _lock(fd: int, path: Path) -> None:
    """Refuse a second writer; some network filesystems cannot lock and are taken as they are."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise StorageError(
            "only one sweep at a time may write to a run directory",
            key="--out",
            value=str(path.parent),
            remedy="wait for the other sweep, or choose another folder",
        ) from None
    except OSError:
        return


def _plain(value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(f"{value!r} of type {type(value).__name__} has no JSON form")


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
