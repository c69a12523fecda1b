"""How an exception on one rank becomes a record that can travel to all of them."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterable
from typing import Any, Literal

from orchestrator.training.memory import is_out_of_memory
from orchestrator.training.records import Failure

Phase = Literal["setup", "loader", "forward", "backward", "update", "evaluation"]
_TRACEBACK_LINES = 40


class Guard:
    """A context that turns an exception into this rank's failure and goes on, so that the rank can tell the others.

    Only `Exception` is caught; an interrupt or exit passes.

    Attributes:
        phase: what is being done; set it as work moves on.
        failure: the first that happened, or `earlier`.
    """

    def __init__(self, rank: int, phase: Phase, *, earlier: Failure | None = None) -> None:
        self.rank, self.phase, self.failure = rank, phase, earlier

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        self.failure = self.failure or failure_of(error, rank=self.rank, phase=self.phase)
        return True


def failure_of(error: BaseException, *, rank: int, phase: Phase) -> Failure:
    """The record of `error`. It holds text only, so that the frames of a broken step free their tensors."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    if len(lines) > _TRACEBACK_LINES:
        lines = [*lines[:5], "  ...", *lines[-_TRACEBACK_LINES + 6 :]]
    return Failure(
        rank=rank,
        phase=phase,
        kind=type(error).__name__,
        message=str(error)[:2000],
        traceback="\n".join(lines),
        out_of_memory=is_out_of_memory(error),
    )


def unfit(failure: Failure, what: str) -> Failure:
    """`failure` for want of memory, where there is nothing smaller than `what` to try."""
    return dataclasses.replace(failure, message=f"{what} does not fit in memory: {failure.message}")


def first_failure(failures: Iterable[Failure | None]) -> Failure | None:
    """The failure of the lowest rank that has one."""
    return next((failure for failure in failures if failure is not None), None)


def describe(failure: Failure) -> str:
    """`failure` in a sentence."""
    message = failure.message.strip().partition("\n")[0]
    return f"{failure.phase} failed on rank {failure.rank}: {failure.kind}: {message}"
