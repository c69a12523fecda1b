"""What the writer was told: that the log is complete, and how much time there is. Signals and its driver say so."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType
from typing import TextIO

# `ray job stop` sends SIGTERM to the whole family of a job, and SIGKILL 3 s later.
HURRY_S = 2.5
# For what is left when the driver is gone without a word.
ORPHAN_S = 60.0
_POLL_S = 0.1


class Orders:
    """A deadline that only moves closer, and whether the log is complete. Safe to use from threads and signal handlers.

    Attributes:
        complete: set when nothing will be appended any more.
    """

    def __init__(self) -> None:
        self.complete = threading.Event()
        self._deadline = math.inf

    def stop_within(self, seconds: float) -> None:
        """There are no more than `seconds` left."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    @property
    def stopped(self) -> bool:
        """Whether there is no time left."""
        return time.monotonic() >= self._deadline

    @property
    def hurried(self) -> bool:
        """Whether there is so little time left that only the most important may be done."""
        return time.monotonic() >= self._deadline - HURRY_S

    def pause(self, seconds: float) -> bool:
        """Wait, but not past the deadline, and not in a hurry that has just begun; whether there is no time left."""
        until, hurried = time.monotonic() + seconds, self.hurried
        while (left := until - time.monotonic()) > 0 and not self.stopped and self.hurried == hurried:
            time.sleep(min(left, _POLL_S))
        return self.stopped

    def obey_signals(self) -> None:
        """Take SIGTERM and SIGINT for "there are `HURRY_S` seconds left"; only in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def obey_driver(self, stdin: TextIO) -> None:
        """Wait for the driver's last word: ``close SECONDS``, or the end of the input if the driver is gone."""
        for line in stdin:
            word, _, seconds = line.strip().partition(" ")
            if word == "close":
                self.complete.set()
                self.stop_within(float(seconds))
                return
        self.complete.set()
        self.stop_within(ORPHAN_S)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop_within(HURRY_S)
