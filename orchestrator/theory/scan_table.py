"""What short runs at one batch tell: trend of the training loss, metric at equal samples and updates, speed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from orchestrator.theory._checks import whole
from orchestrator.theory.critical_batch import Estimate
from orchestrator.theory.fieller import Array
from orchestrator.theory.wandering_noise import slope_error

MIN_WINDOWS = 5
Mode = Literal["min", "max"]
NONE = Estimate()


@dataclass(frozen=True, kw_only=True)
class ScanRun:
    """A short run at one batch.

    Attributes:
        global_batch: B, samples.
        lr: peak learning rate.
        seed: of the run.
        updates: made.
        samples: seen at each evaluation, ascending, >= 0; ``[n]``.
        train_loss: mean since the evaluation before; ``[n]``, NaN where there was no update since.
        metric: validation metric at each evaluation; ``[n]``.
        samples_per_second: of training, evaluations left out; None if unknown.
        noise_scale: at the end, with its interval.
        diverged: whether it did.
    """

    global_batch: int
    lr: float
    seed: int
    updates: int
    samples: tuple[float, ...]
    train_loss: tuple[float, ...]
    metric: tuple[float, ...]
    samples_per_second: float | None = None
    noise_scale: Estimate = NONE
    diverged: bool = False

    def __post_init__(self) -> None:
        whole("global_batch", self.global_batch)
        if not len(self.samples) == len(self.train_loss) == len(self.metric):
            raise ValueError("samples, train_loss and metric: must be of equal length")
        if any(b <= a for a, b in zip(self.samples, self.samples[1:], strict=False)):
            raise ValueError("samples: must ascend")


@dataclass(frozen=True, kw_only=True)
class ScanRow:
    """What a scan tells of one batch; None, or an empty estimate, where it tells nothing.

    Attributes:
        global_batch: B, samples.
        lr: peak learning rate.
        updates: of each run.
        runs: seeds.
        trend: fall of the training loss per sample, over the samples that all batches saw, with its interval.
        to_level: samples to a value of the metric that the smallest batch reaches well within its run.
        relative: the smallest batch's samples to it over this one's: how well this batch uses its samples.
        at_equal_samples: validation metric after the samples that all batches saw.
        at_equal_updates: the same after the updates that all made.
        scatter: standard error of `at_equal_samples`: by the seeds, or with one that of an evaluation about its
            neighbours, which leaves out how whole runs differ.
        samples_per_second: median.
        relative_per_second: `relative` times that speed over the smallest batch's: progress by the clock.
        noise_scale: at the end of the runs.
        slower: whether it clearly learns less per sample than the best batch.
        reason: why there is no `to_level`, or empty.
        diverged: whether a run did.
    """

    global_batch: int
    lr: float
    updates: int
    runs: int
    trend: Estimate = NONE
    to_level: Estimate = NONE
    relative: Estimate = NONE
    at_equal_samples: float | None = None
    at_equal_updates: float | None = None
    scatter: float | None = None
    samples_per_second: float | None = None
    relative_per_second: Estimate = NONE
    noise_scale: Estimate = NONE
    slower: bool = False
    reason: str = ""
    diverged: bool = False


def trend(samples: Array, values: Array, *, confidence: float = 0.95) -> Estimate:
    """How fast `values` fall with `samples`, both ``[n]``, robustly; empty below `MIN_WINDOWS` points.

    The value is the Theil-Sen slope: the median over all pairs, which up to 29 % of outliers do not carry away. The
    half-width is the larger of two: Sen's by ranks, for points that scatter independently about a line, and that of the
    least-squares slope of a series that wanders as well (`wandering_noise`).

    Source: Sen 1968, "Estimates of the regression coefficient based on Kendall's tau".

    >>> round(trend(np.arange(9.0), 5 - 0.5 * np.arange(9.0)).value, 9)
    0.5
    """
    if len(samples) < MIN_WINDOWS:
        return NONE
    slope, _, low, high = (float(one) for one in stats.theilslopes(values, samples, confidence))
    half = max(0.5 * (high - low), slope_error(samples, values, confidence))
    return Estimate(value=-slope, low=-slope - half, high=-slope + half)


def is_sound(run: ScanRun) -> bool:
    """Whether a run tells anything: it did not diverge, and its metric was finite somewhere."""
    return not run.diverged and bool(run.samples)


def row(
    batch: int, group: Sequence[ScanRun], equal: float | None, updates: int | None, logs: bool, confidence: float
) -> ScanRow:
    """What the runs of one batch tell.

    Args:
        batch: samples.
        group: its runs.
        equal: samples that all batches saw; None if none did not diverge.
        updates: that all made, alike.
        logs: whether to take logs of training losses.
        confidence: of the intervals.
    """
    blank = ScanRow(global_batch=batch, lr=group[0].lr, updates=min(run.updates for run in group), runs=len(group))
    if not all(map(is_sound, group)) or equal is None or updates is None:
        return dataclasses.replace(blank, diverged=True)
    fall = _mean([_run_trend(run, equal, logs, confidence) for run in group])
    speeds = [run.samples_per_second for run in group if run.samples_per_second is not None]
    speed = float(np.median(speeds)) if speeds else None
    ends = [float(np.interp(equal, run.samples, run.metric)) for run in group]
    latest = max(group, key=lambda run: run.noise_scale.value is not None)
    return dataclasses.replace(
        blank,
        trend=fall,
        at_equal_samples=float(np.mean(ends)),
        at_equal_updates=float(np.mean([np.interp(updates * batch, run.samples, run.metric) for run in group])),
        scatter=_scatter(group, ends, equal),
        samples_per_second=speed,
        noise_scale=latest.noise_scale,
    )


def _windows(run: ScanRun) -> tuple[Array, Array, Array]:
    """Middles and ends of the windows of training, in samples, and their mean losses."""
    edges = np.array((0.0, *run.samples))
    losses = np.array(run.train_loss)
    there = ~np.isnan(losses)
    return 0.5 * (edges[:-1] + edges[1:])[there], edges[1:][there], losses[there]


def _run_trend(run: ScanRun, equal: float, logs: bool, confidence: float) -> Estimate:
    middles, ends, losses = _windows(run)
    seen = ends <= equal
    values = np.log(losses[seen]) if logs else losses[seen]
    return trend(middles[seen], values, confidence=confidence)


def _mean(estimates: Sequence[Estimate]) -> Estimate:
    values = [one.value for one in estimates if one.value is not None]
    if len(values) < len(estimates):
        return NONE
    value = float(np.mean(values))
    half = math.sqrt(sum(half_width(one) ** 2 for one in estimates)) / len(values)
    return Estimate(value=value, low=value - half, high=value + half)


def _scatter(group: Sequence[ScanRun], ends: Sequence[float], equal: float) -> float | None:
    if len(ends) > 1:
        return float(np.std(ends, ddof=1)) / math.sqrt(len(ends))
    # Second differences are free of any line; 0.6745 sd is a normal's median deviation, and 6 their variance.
    run = group[0]
    late = [value for seen, value in zip(run.samples, run.metric, strict=True) if 0.5 * equal <= seen <= equal]
    bends = np.diff(late, n=2)
    return float(np.median(np.abs(bends))) / 0.6745 / math.sqrt(6.0) if len(bends) >= MIN_WINDOWS else None


def half_width(one: Estimate) -> float:
    """Half the width of an interval; 0 where there is none."""
    return 0.5 * ((one.high or 0.0) - (one.low or 0.0))
