"""Whether something measured in rounds has moved since earlier runs, beyond what noise explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from orchestrator.theory.critical_batch import Estimate

LEAST_RUNS = 3
"""Earlier runs from which on their own spread tells what is ordinary."""
LEAST_MOVE = 0.1
"""Share below which a change since fewer runs is not told from the days' spread, which is then unknown."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """How a positive quantity compares with earlier runs.

    Attributes:
        factor: now over before, with its interval.
        verdict: ``up`` or ``down`` where the interval excludes 1 (and the change is large enough where the spread of
            runs is unknown), else ``held``.
        runs: earlier ones that it was compared with.
    """

    factor: Estimate
    verdict: Literal["up", "down", "held"]
    runs: int


def compare_runs(before: Sequence[Sequence[float]], now: Sequence[float], *, confidence: float = 0.99) -> Moved:
    r"""Compare this run's rounds with those of earlier runs, in log space.

    With n >= 3 earlier runs, their means spread by s, and a further run of the same lies within
    :math:`t_{n-1} s \sqrt{1 + 1/n}` of their mean (a prediction interval). With fewer, the spread of runs is unknown:
    Welch's interval for the difference of the last run's rounds and this one's is then a lower bound of the noise, and
    a change of less than `LEAST_MOVE` counts as held.

    Source: Hahn & Meeker 1991, "Statistical Intervals", section 4.8; Welch 1947.

    Args:
        before: rounds by earlier run, the latest last; at least one run.
        now: rounds of this run; all values > 0.
        confidence: one minus the rate of false alarms of one comparison.

    Raises:
        ValueError: for no earlier run, or no rounds.

    >>> compare_runs([[1.0, 1.01], [1.03, 1.02], [0.98, 0.99]], [2.0, 2.02]).verdict
    'up'
    >>> compare_runs([[1.0, 1.01, 1.02]], [1.02, 1.03, 1.05]).verdict
    'held'
    """
    if not before or not now or not all(before):
        raise ValueError("a comparison needs rounds of this run and of at least one earlier one")
    logs = [np.log(rounds) for rounds in before]
    mine = np.log(now)
    if len(before) >= LEAST_RUNS:
        means = np.array([float(np.mean(one)) for one in logs])
        n = len(means)
        change = float(np.mean(mine)) - float(np.mean(means))
        half = float(stats.t.ppf(0.5 + 0.5 * confidence, n - 1) * np.std(means, ddof=1) * math.sqrt(1.0 + 1.0 / n))
        least = 0.0
    else:
        change, half = _welch(logs[-1], mine, confidence)
        least = math.log1p(LEAST_MOVE)
    verdict: Literal["up", "down", "held"] = "held"
    if abs(change) > max(half, least):
        verdict = "up" if change > 0 else "down"
    factor = Estimate(value=math.exp(change), low=_exp(change - half), high=_exp(change + half))
    return Moved(factor=factor, verdict=verdict, runs=len(before))


def _welch(before: np.ndarray, now: np.ndarray, confidence: float) -> tuple[float, float]:
    """The difference of the means, and half the width of its interval; without two rounds each, no bound."""
    change = float(np.mean(now) - np.mean(before))
    if min(len(before), len(now)) < 2:
        return change, math.inf
    parts = [float(np.var(one, ddof=1)) / len(one) for one in (before, now)]
    total = sum(parts)
    if total == 0.0:
        return change, 0.0
    dof = total**2 / sum(p**2 / (len(one) - 1) for p, one in zip(parts, (before, now), strict=True))
    return change, float(stats.t.ppf(0.5 + 0.5 * confidence, dof)) * math.sqrt(total)


def _exp(value: float) -> float | None:
    return math.exp(value) if math.isfinite(value) else None
