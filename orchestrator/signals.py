"""Ctrl-C, SIGTERM and ``ray job stop``: the first ends the run in order, the second at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

import psutil

EXIT_CODE = 130


class Interrupts:
    """Turns the first SIGINT or SIGTERM into a `KeyboardInterrupt`; the next one ends this process and its children.

    `install` again after anything that installs handlers of its own, as ``ray.init`` does. It does nothing outside of
    the main thread, where Python takes no handlers.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Take both signals."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before.setdefault(number, signal.getsignal(number))
                signal.signal(number, self._on_signal)

    def uninstall(self) -> None:
        """Leave both signals to whom they belonged before the first `install`."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._seen += 1
        if self._seen == 1:
            raise KeyboardInterrupt
        for child in psutil.Process().children(recursive=True):
            child.kill()
        os._exit(EXIT_CODE)
