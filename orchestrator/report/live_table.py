"""The table that a terminal shows while a sweep runs: a header line, the running trials, and the latest that ended."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from orchestrator.report import formats
from orchestrator.report.history import SweepHistory, TrialHistory
from orchestrator.report.objective import Objective
from orchestrator.report.progress import Progress
from orchestrator.report.tables import grid

MAX_ROWS = 15
# Widest rows: a repeat's id, a linear rule, and "stopped by race".
WIDE_COLUMNS = 104
MEDIUM_COLUMNS = 88
_STYLES = {"running": "cyan", "diverged": "red", "failed": "red", "stopped": "yellow"}
_COLUMNS = (
    "trial",
    "B",
    "split",
    "peak LR",
    "rule",
    "warmup",
    "samples",
    "metric",
    "rate",
    "ETA",
    "status",
)
_DROPPED = {"wide": set[str](), "medium": {"warmup", "rate"}, "narrow": {"warmup", "rate", "split"}}


def live_view(history: SweepHistory, *, now: float, width: int, height: int) -> Group:
    """The view of a started sweep at unix time `now`, for a terminal of `width` x `height` characters.

    `split` is micro batch x accumulation x world size. A narrow terminal loses warmup,
    rate, then split.
    """
    objective = Objective.of(history)
    size = "wide" if width >= WIDE_COLUMNS else "medium" if width >= MEDIUM_COLUMNS else "narrow"
    header = Text(Progress.of(history, objective, now=now).line(), style="bold", no_wrap=True, overflow="ellipsis")
    return Group(header, _table(history, objective, size=size, rows=min(MAX_ROWS, max(1, height - 6))))


def _table(history: SweepHistory, objective: Objective, *, size: str, rows: int) -> Table:
    metric = objective.metric.removeprefix("val/")
    shown = [name for name in _COLUMNS if name not in _DROPPED[size]]
    headings = [metric if name == "metric" else name for name in shown]
    table = grid(headings, (), left=("trial", "rule", "status"))
    best = next(iter(objective.ranked(history.searched)), None)
    for trial in _chosen(history, rows):
        cells = _cells(trial, objective)
        style = "green" if trial is best else _STYLES.get(trial.status)
        table.add_row(*(Text(cells[name]) for name in shown), style=style)
    return table


def _chosen(history: SweepHistory, rows: int) -> list[TrialHistory]:
    """All running trials, filled up with those that ended last, by number."""
    running = [trial for trial in history.trials.values() if trial.status == "running"][-rows:]
    ended = sorted((t for t in history.trials.values() if t.ended_at is not None), key=lambda t: t.ended_at or 0.0)
    spare = rows - len(running)
    return sorted([*running, *(ended[-spare:] if spare else [])], key=lambda t: t.number)


def _cells(trial: TrialHistory, objective: Objective) -> dict[str, str]:
    rate = trial.samples_seen / trial.train_seconds if trial.train_seconds > 0 else None
    left_samples = max(0, trial.spec["budget_samples"] - trial.samples_seen)
    eta = formats.duration(left_samples / rate) if rate and trial.status == "running" else ""
    latest = trial.evaluations[-1]["metrics"].get(objective.metric) if trial.evaluations else None
    status = f"stopped by {trial.stopped_by}" if trial.status == "stopped" and trial.stopped_by else trial.status
    return {
        "trial": trial.trial,
        "B": str(trial.global_batch),
        "split": trial.split,
        "peak LR": formats.lr(trial.peak_lr),
        "rule": trial.lr["rule"],
        "warmup": formats.count(trial.lr["warmup_samples"]),
        "samples": formats.count(trial.samples_seen),
        "metric": formats.number(latest),
        "rate": f"{formats.count(rate)}/s" if rate else "-",
        "ETA": eta,
        "status": status.replace("target_reached", "at target"),
    }
