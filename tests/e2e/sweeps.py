"""Running sweeps in tests, and reading what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import chaos
import optuna
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

BASE: dict[str, Any] = {
    "task": {"name": "scripted:Scripted"},
    "budget": {"samples": 512, "eval_every": 128},
    "objective": {"kind": "best_metric", "metric": "val/loss"},
    "batch": {"global": 64},
    "lr": {"base": 0.1, "warmup": 0, "decay": "none"},
    "search": {"trials": 4, "sampler": "grid"},
    "cluster": {"workers": 2, "gangs": 1},
}
# The short form of the sweep that `benchmarks/chaos.py` disturbs.
TRIALS = 5
SHORT: dict[str, Any] = {"search": {**chaos.SPACE["search"], "trials": TRIALS}}


class RunSweep(Protocol):
    """Runs a sweep as its command line would, and returns its summary."""

    def __call__(self, space: str | Path, *settings: str, out: Path, expect: int = 0) -> dict[str, Any]: ...


def write_space(folder: Path, space: dict[str, Any], **sections: dict[str, Any]) -> Path:
    """`BASE` with `sections` laid over it and `space`, as a file in `folder`."""
    document = {**BASE, **{name: {**BASE.get(name, {}), **section} for name, section in sections.items()}}
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump({**document, "space": space}))
    return path


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def events_of(run: Path, kind: str) -> list[dict[str, Any]]:
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event for event in events if event["event"] == kind]


def study_of(run: Path) -> optuna.Study:
    return optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(run / "study.journal"))))
