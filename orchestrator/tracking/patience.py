"""How the writer waits for a server that is away, and when it gives up on what the server will never take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from orchestrator.tracking.orders import Orders

T = TypeVar("T")

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0
HURRIED_PAUSE_S = 0.2
REFUSALS = 3

# Answers of MLflow that the same request will get again.
PERMANENT = frozenset(
    {
        "BAD_REQUEST",
        "INVALID_PARAMETER_VALUE",
        "INVALID_STATE",
        "RESOURCE_ALREADY_EXISTS",
        "RESOURCE_DOES_NOT_EXIST",
    }
)


class Abandoned(Exception):
    """The writer was told to stop while it waited."""


class Patience:
    """Repeats an action until it works, the server refuses it for good, or the writer must stop.

    Args:
        alive: whether the server answers anything at all; a refusal only counts while it does.
        orders: how much time there is.
        on_problem: gets a sentence when an action has to wait, and None when one worked.
        on_refused: gets a sentence when an action is given up.
    """

    def __init__(
        self,
        *,
        alive: Callable[[], bool],
        orders: Orders,
        on_problem: Callable[[str | None], None],
        on_refused: Callable[[str], None],
    ) -> None:
        self._alive, self._orders = alive, orders
        self._on_problem, self._on_refused = on_problem, on_refused

    def __call__(self, what: str, action: Callable[[], T], *, upload: bool = False) -> T | None:
        """The result of `action`, or None if it was given up after `REFUSALS` refusals in a row.

        Args:
            what: names the action in messages.
            action: must change nothing if it is done a second time, since its answer may have been lost.
            upload: an artifact store fails in its own ways, so any error counts as a refusal there.

        Raises:
            Abandoned: if there is no time left and the action has not worked.
        """
        pause, refusals = FIRST_PAUSE_S, 0
        while True:
            try:
                result = action()
                self._on_problem(None)
                return result
            except Exception as error:  # noqa: BLE001 - every store has errors of its own
                refused = (upload or _code(error) in PERMANENT) and self._alive()
                refusals = refusals + 1 if refused else 0
                message = f"{what}: {type(error).__name__}: {error}"
            if refusals >= REFUSALS:
                self._on_refused(message)
                return None
            self._on_problem(message)
            if self._orders.pause(min(pause, HURRIED_PAUSE_S) if self._orders.hurried else pause):
                raise Abandoned(message)
            pause = min(2 * pause, LONGEST_PAUSE_S)


def _code(error: Any) -> str:
    return str(getattr(error, "error_code", ""))
