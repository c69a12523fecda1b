"""The noise scale in a study's final runs: at the target with its interval, and along training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orchestrator.study.trials import StudyTrial
from orchestrator.theory.ladder_summary import BatchResult
from orchestrator.theory.pooled_noise import pooled

POINTS = 30


def noise_at_target(trials: Sequence[StudyTrial], rung: BatchResult) -> dict[str, Any] | None:
    """The noise scale where the final runs of a batch reach the target; None where they cannot tell it together.

    tr(Sigma) and |G|^2 are averaged over the seeds first, also over those that cannot tell their ratio.
    """
    if rung.crossing is None or not rung.crossing.samples:
        return None
    return _told(_finals(trials, rung), rung.crossing.samples)


def noise_path(trials: Sequence[StudyTrial], rung: BatchResult) -> list[dict[str, Any]]:
    """The same at some 30 places along training, evenly apart in ln(samples), as far as every final run went."""
    runs = [run for run in _finals(trials, rung) if run.evaluations]
    if not runs:
        return []
    end = min(run.evaluations[-1]["samples_seen"] for run in runs)
    places = [float(at) for at in np.geomspace(max(1.0, end / 100.0), end, POINTS)]
    return [{"samples_seen": at, **found} for at in places if (found := _told(runs, at)) is not None]


def _finals(trials: Sequence[StudyTrial], rung: BatchResult) -> list[StudyTrial]:
    return [
        one
        for one in trials
        if one.phase == "final"
        and one.status != "failed"
        and (one.run.global_batch, one.run.lr) == (rung.global_batch, rung.lr)
    ]


def _told(runs: Sequence[StudyTrial], at: float) -> dict[str, Any] | None:
    windows = [window for run in runs if (window := run.window(at)) is not None]
    found = pooled(windows) if windows else None
    if found is None or found.value is None:
        return None
    return {"value": found.value, "low": found.low, "high": found.high, "seeds": found.windows}
