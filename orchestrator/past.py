"""What an earlier process left of a sweep, as its record tells it: the ground on which another takes the sweep on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cluster.jobs import Known
from orchestrator.report.history import SweepHistory
from orchestrator.search.scheduler import EarlyStopping
from orchestrator.tracking.events import Event, read_events

Ending = dict[str, Any]


@dataclass(frozen=True)
class Past:
    """A record, and the fold of it."""

    events: list[Event]
    history: SweepHistory

    @classmethod
    def read(cls, path: Path) -> Past:
        """The record at `path`.

        Raises:
            StorageError: it cannot be read.
        """
        events = read_events(path)
        return cls(events, SweepHistory.of(events))

    @property
    def started(self) -> Event:
        """The event that describes the sweep; empty if the process was cut before it."""
        return self.history.started

    @property
    def reused(self) -> set[str]:
        """Ids of suggestions that took another trial's result."""
        return {event["trial"] for event in self.history.reused}

    def known(self) -> dict[str, Known]:
        """Trials that have begun and not ended: what a mailbox must know of them."""
        breaks = Counter[str]()
        for event in self.events:
            if event["event"] == "trial_interrupted":
                breaks[event["trial"]] = event["breaks"]
        names = ("samples_seen", "updates", "metrics", "train_seconds")
        return {
            trial.trial: Known(
                evaluations=[{name: e[name] for name in names} for e in trial.evaluations], breaks=breaks[trial.trial]
            )
            for trial in self.history.trials.values()
            if trial.status == "running"
        }

    def endings(self, metric: str) -> dict[str, Ending]:
        """How trials ended, by id and in the order of their ends, as `StudySearcher.take_on` takes it."""
        found: dict[str, Ending] = {}
        for event in self.events:
            if event["event"] == "trial_ended":
                evaluations = self.history.trials[event["trial"]].evaluations
                value = evaluations[-1]["metrics"].get(metric) if evaluations else None
                last = None if value is None else (evaluations[-1]["samples_seen"], value)
                found[event["trial"]] = {"status": event["status"], "value": event["value"], "last": last}
        return found

    def judge_again(self, scheduler: EarlyStopping, metric: str) -> None:
        """Let a fresh scheduler see every evaluation, in order."""
        for event in self.events:
            if event["event"] == "evaluation":
                trial = self.history.trials[event["trial"]]
                result = {name: event[name] for name in ("samples_seen", "updates", "train_seconds")}
                result |= {"metric": event["metrics"].get(metric), "global_batch": trial.global_batch}
                scheduler.judge_again(trial.trial, trial.phase, result)
