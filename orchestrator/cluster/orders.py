"""How a worker learns, in the middle of a trial, that it should stop where it is: a thread that waits for the word."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

_WAIT_S = 20.0


class Orders(threading.Thread):
    """Asks for an order again and again; the training loop only looks at a flag.

    Args:
        ask: the mailbox's ``order`` as a function of the seconds to wait for it; returns a Ray reference.
    """

    def __init__(self, ask: Callable[[float], Any]) -> None:
        super().__init__(name="orders", daemon=True)
        self._ask = ask
        self._stop = threading.Event()
        self.start()

    def stop(self) -> bool:
        """Whether the trial at hand should stop at its next update."""
        return self._stop.is_set()

    def run(self) -> None:
        """Wait for the order until it comes, or until nobody is there to give it."""
        answer: bool | None = False
        while answer is False:
            try:
                answer = ray.get(self._ask(_WAIT_S))
            except RayError:  # the mailbox is gone, and with it everybody who wants to know of this trial
                answer = True
        if answer:
            self._stop.set()
