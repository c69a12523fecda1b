"""Follows an event log that another process writes, and hands each event to listeners in this one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from orchestrator.errors import StorageError
from orchestrator.tracking.events import Event, read_lines

POLL_S = 0.1
_logger = logging.getLogger(__name__)


class Follower(threading.Thread):
    """Calls every listener with every event, in order, in a thread of its own. Use it as a context manager.

    A listener that raises is logged and goes on being called: what is shown must not stop what is run.

    Args:
        path: the log; it need not exist yet.
        listeners: called with each event.
    """

    def __init__(self, path: Path, listeners: Sequence[Callable[[Event], None]]) -> None:
        super().__init__(name="event-follower", daemon=True)
        self._path, self._listeners = path, listeners
        self._offset = 0
        self._closing = threading.Event()

    def __enter__(self) -> Follower:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Hand over what is in the log by now, then end. Closing twice is fine."""
        self._closing.set()
        self.join()

    def run(self) -> None:
        """Poll until closed, and once more."""
        last = False
        while not last:
            last = self._closing.wait(POLL_S)
            try:
                if self._path.exists():
                    for event, end in read_lines(self._path, self._offset):
                        self._tell(event)
                        self._offset = end
            except StorageError:
                _logger.exception("the record cannot be read at the moment")

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                _logger.exception("a listener failed on event %r", event["event"])
