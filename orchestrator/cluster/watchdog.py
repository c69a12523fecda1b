"""Ends a worker that makes no progress: a process that hangs is worse than a dead one, which is replaced at once."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType

import ray
from ray.exceptions import RayError

from orchestrator.training.group import Group

EXIT_CODE = 70
_REPORT_TIMEOUT_S = 5.0
_WAITING_IN = os.path.join("training", "group.py")


class Watchdog(threading.Thread):
    """Watches over the thread that enters it as a context; needs a `beat` from it every `timeout_s` seconds.

    A hang on one rank leaves the others waiting in a collective, so all of them end at about the same time. Each says
    where it was, and whether it only waited for others: that tells which rank is to blame.

    Args:
        timeout_s: None watches nothing.
        say: the mailbox's ``hung`` as a function of (rank, waits, where); returns a Ray reference.
    """

    def __init__(self, timeout_s: float | None, say: Callable[[int, bool, str], object], group: Group) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._timeout_s, self._say, self._group = timeout_s, say, group
        self._thread = 0
        self._last_beat: float | None = None  # None between trials, when there is nothing to watch
        if timeout_s is not None:
            self.start()

    def beat(self) -> None:
        """Progress was made. Costs a tenth of a microsecond."""
        self._last_beat = time.monotonic()

    def __enter__(self) -> Watchdog:
        self._thread = threading.get_ident()
        self.beat()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._last_beat = None

    def run(self) -> None:
        """Look at the clock, and end the process when it is time."""
        assert self._timeout_s is not None
        while True:
            time.sleep(min(1.0, self._timeout_s / 10))
            last = self._last_beat
            if last is not None and time.monotonic() - last > self._timeout_s:
                self._give_up()

    def _give_up(self) -> None:
        frames = traceback.extract_stack(sys._current_frames()[self._thread])
        waits = any(frame.filename.endswith(_WAITING_IN) for frame in frames)
        at = "; ".join(f"{os.path.basename(f.filename)}:{f.lineno} in {f.name}" for f in reversed(frames[-3:]))
        where = f"made no progress for {self._timeout_s:g} s, at {at}"
        print(f"rank {self._group.rank} {where}", file=sys.stderr, flush=True)
        try:
            ray.get(self._say(self._group.rank, waits, where), timeout=_REPORT_TIMEOUT_S)
        except (RayError, TimeoutError):
            pass
        finally:
            os._exit(EXIT_CODE)
