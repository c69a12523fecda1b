"""The noise scale in a study's final runs: at the target with its interval, and along training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from orchestrator.study.trials import Noise, StudyTrial
from orchestrator.theory.ladder_summary import BatchResult

CONFIDENCE = 0.95
POINTS = 30


def noise_at_target(trials: Sequence[StudyTrial], rung: BatchResult) -> dict[str, Any] | None:
    """The noise scale where the final runs of a batch reach the target; None where no run could tell.

    With two seeds or more it is their geometric mean with Student's interval, which holds the spread between seeds and
    that of each estimate; one seed has the interval of its own.
    """
    if rung.crossing is None or not rung.crossing.samples:
        return None
    found = [one for run in _finals(trials, rung) if (one := run.noise(rung.crossing.samples)) is not None]
    return _mean([one for one in found if one.value > 0])


def noise_path(trials: Sequence[StudyTrial], rung: BatchResult) -> list[dict[str, Any]]:
    """The same at some 30 places along training, evenly apart in ln(samples), as far as every final run went."""
    runs = [run for run in _finals(trials, rung) if run.evaluations]
    if not runs:
        return []
    end = min(run.evaluations[-1]["samples_seen"] for run in runs)
    path: list[dict[str, Any]] = []
    for at in np.geomspace(max(1.0, end / 100.0), end, POINTS):
        found = [one for run in runs if (one := run.noise(float(at))) is not None and one.value > 0]
        # Before so many updates were seen, the latest estimate is the same one again.
        fresh = [one for one in found if one.samples > at / 1.3]
        mean = _mean(fresh) if len(fresh) == len(runs) else None
        if mean is not None:
            path.append({"samples_seen": float(at), **mean})
    return path


def _finals(trials: Sequence[StudyTrial], rung: BatchResult) -> list[StudyTrial]:
    return [
        one
        for one in trials
        if one.phase == "final" and one.run.global_batch == rung.global_batch and one.run.lr == rung.lr
    ]


def _mean(found: Sequence[Noise]) -> dict[str, Any] | None:
    if not found:
        return None
    if len(found) == 1:
        return {"value": found[0].value, "low": found[0].low, "high": found[0].high, "seeds": 1}
    logs = np.log([one.value for one in found])
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1) * np.std(logs, ddof=1) / math.sqrt(len(logs)))
    mean = float(np.mean(logs))
    return {
        "value": math.exp(mean),
        "low": math.exp(mean - reach),
        "high": math.exp(mean + reach),
        "seeds": len(logs),
    }
