"""How well each batch of a scan uses its samples: those that it needs to a level of the metric that all reach."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from orchestrator.theory.critical_batch import Estimate
from orchestrator.theory.local_parabola import Curve, fit_around
from orchestrator.theory.scan_table import Mode, ScanRow, ScanRun
from orchestrator.theory.target_crossing import OVERSHOOT, expected_crossing


def with_speeds(
    rows: Sequence[ScanRow], groups: Mapping[int, Sequence[ScanRun]], *, mode: Mode, confidence: float
) -> tuple[list[ScanRow], float | None]:
    """The rows with ``to_level`` and what follows from it, and the common level; None where there is none.

    The level is the validation metric of the smallest batch at two thirds of its run: the larger ones saw more samples,
    and mostly reach it too. Ratios of the samples to one level know neither floor nor shape of the curve. Their
    intervals are those of `target_crossing`, in the logarithm; those of two batches are taken as independent.

    Args:
        rows: ascending by batch.
        groups: the runs of each batch.
        mode: ``min`` if less of the metric is better.
        confidence: of the intervals.
    """
    sound = [row for row in rows if not row.diverged]
    if not sound:
        return list(rows), None
    curves = {row.global_batch: [_curve(run) for run in groups[row.global_batch]] for row in sound}
    level = _level(curves[sound[0].global_batch])
    if level is None:
        return list(rows), None
    found = [row if row.diverged else _timed(row, curves[row.global_batch], level, mode, confidence) for row in rows]
    return _compared(found), level


def log_reach(one: Estimate) -> float:
    """Half the width of an interval in the logarithm; 0 where there is none.

    >>> round(log_reach(Estimate(value=2.0, low=1.0, high=4.0)), 6)
    0.693147
    """
    return 0.5 * math.log(one.high / one.low) if one.low and one.high else 0.0


def _curve(run: ScanRun) -> Curve:
    return Curve(samples=np.array(run.samples), values=np.array(run.metric))


def _level(curves: Sequence[Curve]) -> float | None:
    ended = min(float(curve.samples[-1]) for curve in curves)
    if ended <= 0:
        return None
    local = fit_around(curves, ended / OVERSHOOT, math.log(OVERSHOOT), ended)
    return None if local is None else float(np.mean(local.coefficients[:, 0]))


def _timed(row: ScanRow, curves: Sequence[Curve], level: float, mode: Mode, confidence: float) -> ScanRow:
    crossing = expected_crossing(curves, level, mode, confidence=confidence)
    if not crossing.samples:
        return dataclasses.replace(row, reason=crossing.reason or "not determined: the metric does not improve")
    to_level = Estimate(value=crossing.samples, low=crossing.low, high=crossing.high)
    return dataclasses.replace(row, to_level=to_level)


def _compared(rows: Sequence[ScanRow]) -> list[ScanRow]:
    known = [row for row in rows if row.to_level.value is not None]
    if not known:
        return list(rows)
    first = known[0]
    best = min(known, key=lambda row: row.to_level.value or 0.0)
    return [row if row.to_level.value is None else _against(row, first, best) for row in rows]


def _against(row: ScanRow, first: ScanRow, best: ScanRow) -> ScanRow:
    relative = _ratio(first, row)
    speed = None
    if row.samples_per_second and first.samples_per_second:
        speed = row.samples_per_second / first.samples_per_second
    by_clock = Estimate() if speed is None else _times(relative, speed)
    slower = row is not best and (_ratio(best, row).high or 1.0) < 1.0
    return dataclasses.replace(row, relative=relative, relative_per_second=by_clock, slower=slower)


def _ratio(one: ScanRow, other: ScanRow) -> Estimate:
    if one is other:
        return Estimate(value=1.0, low=1.0, high=1.0)
    value = (one.to_level.value or 0.0) / (other.to_level.value or 1.0)
    reach = math.exp(min(math.hypot(log_reach(one.to_level), log_reach(other.to_level)), 700.0))
    return Estimate(value=value, low=value / reach, high=value * reach)


def _times(one: Estimate, factor: float) -> Estimate:
    value, low, high = (None if end is None else factor * end for end in (one.value, one.low, one.high))
    return Estimate(value=value, low=low, high=high)
