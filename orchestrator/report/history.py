"""A sweep as it stands, folded from its events: one record a trial, in the order in which trials appeared.

Every report (summary, console, figures) reads this fold, so that they can not disagree. Nothing is computed here
that an event does not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]
FINISHED = ("completed", "target_reached")
_SPLIT = ("micro_batch", "accumulation", "world_size")


@dataclass(kw_only=True)
class TrialHistory:
    """One trial: what it was given, what it reported, how it ended (`status` is ``running`` until then)."""

    trial: str
    number: int
    key: str
    params: dict[str, Any]
    spec: dict[str, Any]
    phase: str
    repeat_of: str | None
    started_at: float
    status: str = "running"
    stopped_by: str | None = None
    reason: str = ""
    value: Any = None
    outcome: dict[str, Any] | None = None
    turnaround_s: float | None = None
    ended_at: float | None = None
    evaluations: list[dict[str, Any]] = field(default_factory=list)

    @property
    def global_batch(self) -> int:
        """Samples an update."""
        return int(self.spec["plan"]["global_batch"])

    @property
    def split(self) -> str:
        """Micro batch x accumulation x world size, such as ``8x4x2``."""
        return "x".join(str(self.spec["plan"][name]) for name in _SPLIT)

    @property
    def lr(self) -> dict[str, Any]:
        """The fields of `config.trial.LrPlan`."""
        return dict(self.spec["lr"])

    @property
    def peak_lr(self) -> float:
        """The peak LR."""
        return float(self.spec["lr"]["peak"])

    @property
    def samples_seen(self) -> int:
        """Samples consumed, as far as is known: by the outcome, else by the last evaluation."""
        return int(self._latest("samples_seen"))

    @property
    def updates(self) -> int:
        """Optimizer steps made, as far as is known."""
        return int(self._latest("updates"))

    @property
    def train_seconds(self) -> float:
        """Seconds of training without evaluations, as far as is known."""
        return float(self._latest("train_seconds"))

    @property
    def finished(self) -> bool:
        """Whether it trained to its budget or its target, so that its value may be compared with others."""
        return self.status in FINISHED

    def _latest(self, name: str) -> float:
        if self.outcome is not None:
            return float(self.outcome[name])
        return float(self.evaluations[-1][name]) if self.evaluations else 0.0


@dataclass(kw_only=True)
class SweepHistory:
    """A sweep: its start event, its trials by id, the suggestions that were answered without training, its status."""

    started: dict[str, Any] = field(default_factory=dict)
    trials: dict[str, TrialHistory] = field(default_factory=dict)
    reused: list[dict[str, Any]] = field(default_factory=list)
    status: str = "running"
    ended_at: float | None = None

    @classmethod
    def of(cls, events: Iterable[Event]) -> SweepHistory:
        """The fold of `events`, in order. Raises KeyError if a field that an event must have is missing."""
        history = cls()
        for event in events:
            history.apply(event)
        return history

    @property
    def spec(self) -> dict[str, Any]:
        """The resolved YAML of the sweep; empty before its start event."""
        return dict(self.started.get("spec", {}))

    @property
    def finished(self) -> list[TrialHistory]:
        """Trials whose value may be compared, in order of appearance."""
        return [trial for trial in self.trials.values() if trial.finished]

    @property
    def searched(self) -> list[TrialHistory]:
        """Trials that the search suggested; repeats under other seeds are left out."""
        return [trial for trial in self.trials.values() if trial.phase == "search"]

    def apply(self, event: Event) -> None:
        """Take in one event. Kinds that no report needs are passed over."""
        match event["event"]:
            case "sweep_started":
                self.started = dict(event)
                self.status, self.ended_at = "running", None
            case "sweep_resumed":
                self.status, self.ended_at = "running", None
            case "trial_started":
                self._start(event)
            case "evaluation":
                self._evaluate(event)
            case "trial_ended":
                self._end(event)
            case "trial_reused":
                self.reused.append(dict(event))
            case "sweep_ended":
                self.status, self.ended_at = event["status"], event["t"]

    def _start(self, event: Event) -> None:
        names = ("trial", "number", "key", "phase", "repeat_of")
        self.trials[event["trial"]] = TrialHistory(
            **{name: event[name] for name in names},
            params=dict(event["params"]),
            spec=dict(event["spec"]),
            started_at=event["t"],
        )

    def _evaluate(self, event: Event) -> None:
        self.trials[event["trial"]].evaluations.append(dict(event))

    def _end(self, event: Event) -> None:
        trial = self.trials[event["trial"]]
        trial.status = event["status"]
        trial.stopped_by = event["stopped_by"]
        trial.reason = event["reason"] or ""
        trial.value = event["value"]
        trial.outcome = event["outcome"]
        trial.turnaround_s = event["turnaround_s"]
        trial.ended_at = event["t"]
