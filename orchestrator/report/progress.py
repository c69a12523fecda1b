"""How far a sweep is: done and running trials, the best so far, and when it will be over at the present pace."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.report import formats
from orchestrator.report.history import SweepHistory, TrialHistory
from orchestrator.report.objective import Objective


@dataclass(frozen=True, kw_only=True)
class Progress:
    """`done` of `total` suggestions are answered; repeats are counted apart; `eta_s` is None until one is done.

    A study plans as it goes: it has no total, and every run that ended counts as done.
    """

    name: str
    done: int
    total: int | None
    running: int
    repeats: int
    best: TrialHistory | None
    eta_s: float | None

    @classmethod
    def of(cls, history: SweepHistory, objective: Objective, *, now: float) -> Progress:
        """The progress at unix time `now`. The ETA takes the time a suggestion so far for each one left."""
        if "study" in history.started:
            return cls._of_study(history)
        searched = history.searched
        done = sum(trial.status != "running" for trial in searched) + len(history.reused)
        total = max(history.spec["search"]["trials"], len(searched) + len(history.reused))
        started_at = min((trial.started_at for trial in searched), default=now)
        return cls(
            name=history.started["name"],
            done=done,
            total=total,
            running=sum(trial.status == "running" for trial in history.trials.values()),
            repeats=len(history.trials) - len(searched),
            best=next(iter(objective.ranked(searched)), None),
            eta_s=(now - started_at) / done * (total - done) if done else None,
        )

    @classmethod
    def _of_study(cls, history: SweepHistory) -> Progress:
        running = sum(trial.status == "running" for trial in history.trials.values())
        return cls(
            name=history.started["name"],
            done=len(history.trials) - running,
            total=None,
            running=running,
            repeats=0,
            best=None,
            eta_s=None,
        )

    def line(self) -> str:
        """One line of at most 80 columns for names of usual length."""
        done = f"{self.done}" if self.total is None else f"{self.done}/{self.total}"
        parts = [f"{self.name}: {done} done", f"{self.running} running"]
        if self.repeats:
            parts.append(f"{self.repeats} repeats")
        if self.eta_s is not None and self.total is not None and self.done < self.total:
            parts.append(f"ETA {formats.duration(self.eta_s)}")
        if self.best is not None:
            parts.append(f"best {formats.number(self.best.value)} ({self.best.trial})")
        return ", ".join(parts)
