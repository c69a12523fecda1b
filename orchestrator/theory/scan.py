"""A batch scan: a few hundred updates at each batch, read for what they tell of learning and speed, and for no more.

A scan takes minutes and sees the beginning of training only: the critical batch is for `critical_batch`.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.theory.scan_speed import log_reach, with_speeds
from orchestrator.theory.scan_table import Mode, ScanRow, ScanRun, is_sound, row


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The table, ascending by batch, and what it says in `sentences`.

    Attributes:
        rows: of each batch.
        equal_samples: seen by all batches that did not diverge; None without one.
        equal_updates: made by all.
        level: of the metric, to which samples are compared; None where there is none.
        trend_unit: ``e-folds a sample``, or ``loss a sample`` where a loss is not above 0.
        sentences: the verdict, plainly, with its uncertainty.
        confidence: of all intervals.
    """

    rows: tuple[ScanRow, ...]
    equal_samples: float | None
    equal_updates: int | None
    level: float | None
    trend_unit: str
    sentences: tuple[str, ...]
    confidence: float

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict; every number in it is finite."""
        return dataclasses.asdict(self)


def scan(runs: Iterable[ScanRun], *, metric: str, mode: Mode, confidence: float = 0.95) -> Scan:
    """Compare short runs at several batches, at equal samples and at equal updates.

    Which batch uses its samples best is told by the samples to a common level of the metric (`scan_speed`), whatever
    the shape of the curve. The trend (`scan_table.trend`) is a typical slope over the samples that all batches saw, the
    same for all; where the curve bends, its interval says so by being wide. Runs under several seeds are averaged.
    Simulated on Gaussian linear regression, 40 scans of 200 updates each, intervals of 95 % of the ratios between
    batches held the exact one in 85 to 100 %, and were as wide as a factor 1.1 (three seeds) to 5 (one).

    Args:
        runs: one or more seeds a batch.
        metric: name of the validation metric, for sentences.
        mode: ``min`` if less of it is better.
        confidence: of the intervals, in (0, 1).

    Raises:
        ValueError: without runs, or for a confidence out of range.

    >>> import numpy as np
    >>> def run(b, rate):
    ...     t = np.arange(1.0, 41.0) * 8 * b
    ...     loss = tuple(np.exp(-rate * t))
    ...     return ScanRun(global_batch=b, lr=0.1, seed=0, updates=320, samples=tuple(t), metric=loss,
    ...                    train_loss=loss, samples_per_second=100.0 * b**0.5)
    >>> found = scan([run(16, 2e-4), run(64, 1e-4)], metric="val/loss", mode="min")
    >>> [round(row.trend.value, 9) for row in found.rows], round(found.rows[1].relative.value, 1), found.rows[1].slower
    ([0.0002, 0.0001], 0.5, True)
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence = {confidence!r}: must be above 0 and below 1, such as 0.95")
    groups: dict[int, list[ScanRun]] = {}
    for run in sorted(runs, key=lambda one: (one.global_batch, one.seed)):
        groups.setdefault(run.global_batch, []).append(run)
    if not groups:
        raise ValueError("runs = []: at least one is needed")
    # A batch of which one seed diverged is no choice, and its other seeds are the lucky ones.
    sound = [run for group in groups.values() if all(map(is_sound, group)) for run in group]
    logs = all(loss > 0 for run in sound for loss in run.train_loss if not math.isnan(loss))
    equal = min((run.samples[-1] for run in sound), default=None)
    updates = min((run.updates for run in sound), default=None)
    rows, level = with_speeds(
        [row(batch, group, equal, updates, logs, confidence) for batch, group in groups.items()],
        groups,
        mode=mode,
        confidence=confidence,
    )
    return Scan(
        rows=tuple(rows),
        equal_samples=equal,
        equal_updates=updates,
        level=level,
        trend_unit="e-folds a sample" if logs else "loss a sample",
        sentences=tuple(_sentences(rows, level, equal, updates, metric, mode, confidence)),
        confidence=confidence,
    )


def _sentences(
    rows: Sequence[ScanRow],
    level: float | None,
    equal: float | None,
    updates: int | None,
    metric: str,
    mode: Mode,
    confidence: float,
) -> list[str]:
    found = []
    if gone := [row.global_batch for row in rows if row.diverged]:
        found.append(f"Diverged at batch {_listed(gone)}: the learning rate is too high there.")
    if equal is None:
        return [*found, "Nothing can be said of learning: runs diverged at every batch."]
    found += [*_of_samples(rows, level, metric, confidence), _of_metric(rows, equal, updates or 0, metric, mode)]
    found += [text for text in (_of_clock(rows), _of_noise(rows)) if text]
    return found


def _of_samples(rows: Sequence[ScanRow], level: float | None, metric: str, confidence: float) -> Iterator[str]:
    known = [row for row in rows if row.to_level.value is not None]
    if level is None or not known:
        why = next((row.reason for row in rows if row.reason), "too few evaluations of the smallest batch")
        yield f"Which batch uses its samples best is {why if 'not det' in why else f'not determined: {why}'}."
        return
    sure = f"at {100 * confidence:g} %"
    good = [row.global_batch for row in known if not row.slower]
    slow = [row for row in known if row.slower]
    if slow:
        told = ", ".join(
            f"{row.global_batch} x{row.relative.value:.2g} ({row.relative.low:.2g} to {row.relative.high:.2g})"
            for row in slow
        )
        yield (
            f"To {metric} = {level:.3g}, samples are used best at batch {_listed(good)}; clearly worse, "
            f"against batch {known[0].global_batch} ({sure}), at {told}."
        )
    else:
        yield f"To {metric} = {level:.3g}, no batch clearly uses samples better ({sure}): {_listed(good)}."
    for one in rows:
        if one.reason:
            yield f"Batch {one.global_batch} is left out: {one.reason.removeprefix('not determined: ')}."


def _of_metric(rows: Sequence[ScanRow], equal: float, updates: int, metric: str, mode: Mode) -> str:
    pick = min if mode == "min" else max
    sound = [row for row in rows if not row.diverged]
    at_samples = pick(sound, key=lambda row: row.at_equal_samples or 0.0)
    at_updates = pick(sound, key=lambda row: row.at_equal_updates or 0.0)
    scatters = [row.scatter for row in sound if row.scatter is not None]
    scatter = statistics.median(scatters) if scatters else None
    seeds = min(row.runs for row in sound)
    caveat = ""
    if scatter is not None:
        caveat = f"; differences below {2 * math.sqrt(2) * scatter:.2g} tell nothing"
        caveat += "" if seeds > 1 else ", and one seed a batch leaves out how whole runs differ"
    return (
        f"{metric} after {equal:,.0f} samples is best at batch {at_samples.global_batch} "
        f"({at_samples.at_equal_samples:.4g}{caveat}), after {updates:,} updates at batch {at_updates.global_batch} "
        f"({at_updates.at_equal_updates:.4g})."
    )


def _of_clock(rows: Sequence[ScanRow]) -> str:
    timed = [row for row in rows if row.samples_per_second is not None and row.relative_per_second.value is not None]
    if len(timed) < 2:
        return ""
    quick = max(timed, key=lambda row: row.samples_per_second or 0.0)
    best = max(timed, key=lambda row: row.relative_per_second.value or 0.0)
    ratio = (quick.samples_per_second or 0.0) / (timed[0].samples_per_second or 1.0)
    text = (
        f"Batch {quick.global_batch} is trained fastest, {quick.samples_per_second:,.0f} samples/s, {ratio:.2g} times "
        f"batch {timed[0].global_batch}"
    )

    def behind(row: ScanRow) -> float:
        return math.log((best.relative_per_second.value or 1.0) / (row.relative_per_second.value or 1.0))

    rivals = [
        row.global_batch
        for row in timed
        if behind(row) <= math.hypot(log_reach(best.to_level), log_reach(row.to_level))
    ]
    if len(rivals) == 1:
        return f"{text}; by the clock of this machine batch {best.global_batch} clearly learns fastest."
    return f"{text}; by the clock of this machine batches {_listed(rivals)} learn fastest, not to be told apart."


def _of_noise(rows: Sequence[ScanRow]) -> str:
    told = [row for row in rows if row.noise_scale.value is not None and row.noise_scale.high is not None]
    if not told:
        return "The gradient noise scale was not determined."
    row = min(told, key=lambda one: (one.noise_scale.high or 0.0) - (one.noise_scale.low or 0.0))
    scale = row.noise_scale
    return (
        f"The gradient noise scale is {scale.value:.3g} samples ({scale.low:.3g} to {scale.high:.3g}) at batch "
        f"{row.global_batch}, so early in training; it often grows."
    )


def _listed(batches: Iterable[int]) -> str:
    return ", ".join(map(str, batches))
