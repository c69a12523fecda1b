"""How far a setting's value moves with the seed: mean and spread over the seeds that it was trained under."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from orchestrator.report.history import SweepHistory, TrialHistory
from orchestrator.report.objective import Objective

CONFIDENCE = 0.95


def repeats_of(history: SweepHistory, objective: Objective) -> list[dict[str, Any]]:
    """One record for each repeated setting and each value of the objective, in the search's order.

    `mean`, `standard_deviation` (n - 1 in the denominator) and the Student-t interval `low` to `high` of the mean are
    over all seeds; they assume normally spread values. The search's own trial was chosen because its value was good,
    which flatters that mean, so `new_seeds_mean` leaves it out. `missing` counts seeds without a finite value.
    """
    repeated: dict[str, list[TrialHistory]] = {}
    for trial in history.trials.values():
        if trial.repeat_of is not None:
            repeated.setdefault(trial.repeat_of, []).append(trial)
    return [
        _record(history.trials[original], repeats, objective, index)
        for original, repeats in repeated.items()
        for index in range(len(objective.names))
    ]


def _record(
    original: TrialHistory, repeats: Sequence[TrialHistory], objective: Objective, index: int
) -> dict[str, Any]:
    own = _value(original, objective, index)
    new = [(trial.spec["seed"], value) for trial in repeats if (value := _value(trial, objective, index)) is not None]
    pairs = [(original.spec["seed"], own), *new] if own is not None else new
    values = [value for _, value in pairs]
    spread = mean_and_spread(values)
    return {
        "trial": original.trial,
        "measure": objective.names[index],
        "mode": objective.modes[index],
        "global_batch": original.global_batch,
        "peak_lr": original.peak_lr,
        "params": original.params,
        "seeds": [seed for seed, _ in pairs],
        "values": values,
        "missing": 1 + len(repeats) - len(values),
        "new_seeds_mean": float(np.mean([value for _, value in new])) if new else None,
        **spread,
    }


def _value(trial: TrialHistory, objective: Objective, index: int) -> float | None:
    values = objective.values_of(trial.value) if trial.finished else None
    return None if values is None else values[index]


def mean_and_spread(values: Sequence[float]) -> dict[str, Any]:
    """`n`, `mean`, `standard_deviation`, and the interval of the mean; None where `n` is too small to say.

    >>> mean_and_spread([1.0, 2.0, 3.0])["standard_deviation"]
    1.0
    """
    n = len(values)
    mean = float(np.mean(values)) if n else None
    deviation = float(np.std(values, ddof=1)) if n > 1 else None
    low = high = None
    if mean is not None and deviation is not None:
        margin = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(n)
        low, high = mean - margin, mean + margin
    return {
        "n": n,
        "mean": mean,
        "standard_deviation": deviation,
        "low": low,
        "high": high,
        "confidence": CONFIDENCE,
    }
