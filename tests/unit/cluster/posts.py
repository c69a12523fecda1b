"""What the tests of the mailbox hand in and report."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from orchestrator.training.records import Outcome

SPEC = {"plan": {"global_batch": 8}}
INFO: dict[str, Any] = {"number": 0, "key": "k", "params": {}, "phase": "search", "repeat_of": None}


class ListJournal:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def append(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]


def last_loss(evaluations: list[dict[str, Any]], outcome: dict[str, Any]) -> float | None:
    return evaluations[-1]["metrics"]["val/loss"] if evaluations and outcome["status"] == "completed" else None


def evaluation(samples: int) -> dict[str, Any]:
    metrics = {"val/loss": 1 / samples}
    return {"samples_seen": samples, "updates": samples // 8, "metrics": metrics, "train_seconds": 0.1}


def outcome(status: str = "completed", first: float | None = 1.0, last: float | None = 2.0) -> dict[str, Any]:
    base = Outcome(status="completed", samples_seen=16, updates=2, train_seconds=0.2)
    return {**dataclasses.replace(base, first_update_at=first, last_update_at=last).to_dict(), "status": status}


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 10))
