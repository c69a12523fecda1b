"""A trial as the mailbox knows it: what it reported, who stopped it, how often its gang broke. Plain Python."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.training.records import Outcome


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the record of an earlier process says of a trial that has not ended.

    Args:
        evaluations: its evaluations in order.
        breaks: how often it broke its gang.
    """

    evaluations: Sequence[Mapping[str, Any]] = ()
    breaks: int = 0


@dataclass(eq=False)
class Job:
    """A submitted trial.

    Attributes:
        info: what its ``trial_started`` event says beside id and spec.
        evaluations: by samples seen, in order.
        stopped: whether it was told to stop, and `stopped_by` which policy; None if nobody can follow it any more.
        breaks: how often it broke its gang.
        again: why it is handed out once more; empty the first time.
        end: the last message of the trial, once it has ended for whoever follows it.
    """

    trial: str
    spec: dict[str, Any]
    info: dict[str, Any]
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)
    stopped: bool = False
    stopped_by: str | None = None
    breaks: int = 0
    again: str = ""
    end: dict[str, Any] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ended(self) -> bool:
        """Whether nothing more will be told of it."""
        return self.end is not None

    def add(self, evaluation: dict[str, Any]) -> None:
        """Keep an evaluation and wake who waits for it."""
        self.evaluations[evaluation["samples_seen"]] = evaluation
        self._wake()

    def close(self, message: dict[str, Any]) -> None:
        """Tell the last message."""
        self.end = message
        self._wake()

    async def after(self, samples_seen: int) -> dict[str, Any]:
        """The first evaluation past `samples_seen`, or the last message. Waits for it; asking again changes nothing."""
        while True:
            later = next((e for seen, e in self.evaluations.items() if seen > samples_seen), None)
            if found := later or self.end:
                return found
            await self._news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news.clear()


def stopped_outcome(job: Job) -> dict[str, Any]:
    """The outcome of a trial whose gang will not tell it: as of its last evaluation."""
    last = job.evaluations[max(job.evaluations)] if job.evaluations else None
    counts = last or {"samples_seen": 0, "updates": 0, "train_seconds": 0.0}
    return Outcome(
        status="stopped",
        samples_seen=counts["samples_seen"],
        updates=counts["updates"],
        train_seconds=counts["train_seconds"],
    ).to_dict()


def failed_outcome(what: str, reason: str) -> dict[str, Any]:
    """The outcome of a trial that failed outside of training."""
    outcome = Outcome(status="failed", samples_seen=0, updates=0, train_seconds=0.0)
    return dataclasses.replace(outcome, reason=f"{what}: {reason}").to_dict()
