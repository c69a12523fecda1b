"""The lines of a job log: one for each event that a reader of the log wants to know, short enough for 80 columns."""

from __future__ import annotations

from orchestrator.report import formats
from orchestrator.report.history import Event, SweepHistory, TrialHistory
from orchestrator.report.objective import Objective

WIDTH = 80


def line_of(event: Event, history: SweepHistory) -> str | None:
    """The line of `event`, which `history` has already taken in; None for events that are not worth one."""
    match event["event"]:
        case "sweep_started":
            what = "memory and speed" if "probe" in event else Objective.of(history).describe()
            return f"{event['name']}: {what}"
        case "gang_started":
            device = event["workers"][0]["device"] if event["workers"] else "?"
            return f"gang {event['gang']}: {len(event['workers'])} workers on {device}"
        case "gang_lost":
            return _cut(f"gang {event['gang']} lost: {_first_line(event['reason'])}")
        case "trial_ended":
            return _ended(history.trials[event["trial"]], Objective.of(history))
        case "trial_reused":
            value = formats.number(event["value"])
            return f"{event['trial']} reused     as {event['of']}, which trained the same way: {value}"
        case "sweep_ended":
            return f"sweep {event['status']}"
    return None


def _ended(trial: TrialHistory, objective: Objective) -> str:
    what = f"stopped by {trial.stopped_by}" if trial.stopped_by else trial.status.replace("target_reached", "at target")
    what = "past target" if trial.stopped_by == "overshoot" else what
    setting = f"{trial.trial} {what:<10} B {trial.global_batch} ({trial.split}) lr {formats.lr(trial.peak_lr)}"
    if trial.status in ("failed", "diverged"):
        return _cut(f"{setting}: {_first_line(trial.reason)}")
    names = "/".join(name.removeprefix("val/") for name in objective.names)
    result = f"{names} {formats.number(trial.value)}" if trial.value is not None else "target not reached"
    return f"{setting} {trial.lr['rule']}, {result}, {formats.duration(trial.train_seconds)}"


def _first_line(text: str) -> str:
    return (text.strip() or "no reason given").splitlines()[0]


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."
