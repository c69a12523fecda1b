"""Two histories of one trial, value by value. Pure: numbers in, a verdict out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from orchestrator.tracking.endings import ending_points
from orchestrator.tracking.record import History

# What the machine decides and not the trial, and what is derived from such: never compared.
OF_THE_MACHINE = (
    *("samples_per_second", "step_ms", "data_wait_fraction", "peak_memory_bytes", "train_seconds", "turnaround_s"),
    *("value", "value/*", "samples_to_target"),
)
# What is told once, of the samples up to the trial's end.
AT_THE_END = ("noise/*", "skipped_updates")
# What depends on how a global batch is split, beside the rounding of sums.
OF_THE_SPLIT = ("geometry/*", "noise_scale*", "noise/*", "loss_scale", "skipped_updates")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One metric.

    Args:
        name: the metric.
        values: values that either history has.
        differing: how many of them are not equal, or missing on one side.
        largest: largest relative difference |a - b| / max(|a|, |b|); infinite where one side is missing.
        at_samples: where that is; None if nothing differs.
    """

    name: str
    values: int
    differing: int
    largest: float
    at_samples: int | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Every metric, by name.

    Args:
        metrics: what was compared.
        evaluations: at how many samples seen there was an evaluation in both.
        tolerance: relative difference that still counts as equal; 0 wants the same bits.
        endings: how each ended, where that must be the same.
    """

    metrics: tuple[Compared, ...]
    evaluations: int
    tolerance: float = 0.0
    endings: tuple[str, str] | None = None

    @property
    def values(self) -> int:
        """How many values were compared."""
        return sum(metric.values for metric in self.metrics)

    @property
    def differing(self) -> int:
        """How many of them are not equal to the bit."""
        return sum(metric.differing for metric in self.metrics)

    @property
    def worst(self) -> Compared | None:
        """The metric with the largest difference; None if nothing differs."""
        return max((metric for metric in self.metrics if metric.differing), key=lambda m: m.largest, default=None)

    @property
    def holds(self) -> bool:
        """Whether the histories are the same, as far as the tolerance asks."""
        same_end = self.endings is None or self.endings[0] == self.endings[1]
        return same_end and bool(self.evaluations) and (self.worst is None or self.worst.largest <= self.tolerance)

    def __str__(self) -> str:
        counts, worst = f"{self.evaluations} evaluations, {self.values} values", self.worst
        found = [] if self.evaluations else ["no evaluation in common"]
        if self.endings is not None and self.endings[0] != self.endings[1]:
            found.append("ended as {}, and now as {}".format(*self.endings))
        if worst is not None:
            size = "a value missing on one side" if math.isinf(worst.largest) else f"{worst.largest:.3g}"
            found.append(f"largest relative difference {size}, {worst.name} at {worst.at_samples} samples")
            if not self.holds:
                found.append(f"{self.differing} of {self.values} values differ")
        verdict = (
            "not identical" if not self.holds else "identical" if worst is None else f"equal within {self.tolerance:g}"
        )
        return f"{verdict}: {', '.join([counts, *found] if self.holds else found)}"


def compare(
    recorded: History,
    replayed: History,
    *,
    up_to_samples: float = math.inf,
    without: Sequence[str] = (),
    tolerance: float = 0.0,
    endings: tuple[str, str] | None = None,
) -> Comparison:
    """Compare two histories, each metric at every step.

    Args:
        recorded: values by metric and samples seen.
        replayed: likewise.
        up_to_samples: what came later is left out.
        without: patterns of metrics that are left out beside `OF_THE_MACHINE`.
        tolerance: relative difference that counts as equal.
        endings: how each ended, where that must be the same.
    """
    left_out = (*OF_THE_MACHINE, *without)
    names = [
        name for name in sorted({*recorded, *replayed}) if not any(fnmatchcase(name, pattern) for pattern in left_out)
    ]
    compared = [_compare(name, recorded.get(name, {}), replayed.get(name, {}), up_to_samples) for name in names]
    common = set(recorded.get("updates", {})) & set(replayed.get("updates", {}))
    return Comparison(
        metrics=tuple(metric for metric in compared if metric.values),
        evaluations=sum(1 for step in common if step <= up_to_samples),
        tolerance=tolerance,
        endings=endings,
    )


def history_of(
    evaluations: Iterable[Mapping[str, Any]], outcome: Mapping[str, Any], global_batch: int
) -> dict[str, dict[int, float]]:
    """The history of a trial as MLflow would hold it, from what its gang told.

    Args:
        evaluations: in order.
        outcome: how it ended.
        global_batch: samples an update.
    """
    history: dict[str, dict[int, float]] = {}
    for evaluation in evaluations:
        for name, value in {**evaluation["metrics"], "updates": evaluation["updates"]}.items():
            history.setdefault(name, {})[evaluation["samples_seen"]] = float(value)
    event = {"t": 0.0, "status": outcome["status"], "outcome": outcome}
    for point in ending_points(event, global_batch):
        history.setdefault(point.name, {})[point.step] = point.value
    return history


def _compare(name: str, one: Mapping[int, float], other: Mapping[int, float], up_to_samples: float) -> Compared:
    steps = sorted(step for step in {*one, *other} if step <= up_to_samples)
    differences = {step: _relative(one.get(step), other.get(step)) for step in steps}
    differing = {step: size for step, size in differences.items() if size}
    largest = max(differing.values(), default=0.0)
    at = next((step for step, size in differing.items() if size == largest), None)
    return Compared(name=name, values=len(steps), differing=len(differing), largest=largest, at_samples=at)


def _relative(one: float | None, other: float | None) -> float:
    if one is None or other is None:
        return math.inf
    return 0.0 if one == other else abs(one - other) / max(abs(one), abs(other))
