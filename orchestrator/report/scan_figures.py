"""The figure of a batch scan, drawn from its summary: learning per sample, metric, and speed by global batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orchestrator.report.figures import GREY, batch_axis, log_axis, panels, save

Record = Mapping[str, Any]
WIDE = 10.0
"""Metrics that differ by more than this factor are drawn on a logarithmic axis."""


def write_scan_figures(outcome: Record, name: str, folder: Path) -> list[Path]:
    """Draw what there is to draw into `folder` as PNG files; the paths written."""
    if not any(row["at_equal_samples"] is not None for row in outcome["rows"]):
        return []
    folder.mkdir(parents=True, exist_ok=True)
    return [save(scan_table(outcome, name), folder / "scan.png")]


def scan_table(outcome: Record, name: str) -> Figure:
    """The columns of the table against the batch: above the use of samples with its interval, below the speed, and
    between them the metric at equal samples and at equal updates."""
    figure, (above, middle, below) = panels(3)
    rows = [row for row in outcome["rows"] if not row["diverged"]]
    batches = [row["global_batch"] for row in rows]
    _use(above, [row for row in rows if row["relative"]["value"] is not None])
    above.set_ylabel("use of samples")
    samples, updates = outcome["equal_samples"], outcome["equal_updates"]
    for key, style, label in (
        ("at_equal_samples", "o-", f"after {samples:,.0f} samples"),
        ("at_equal_updates", "s--", f"after {updates:,} updates"),
    ):
        middle.plot(batches, [row[key] for row in rows], style, label=label)
    values = [row[key] for row in rows for key in ("at_equal_samples", "at_equal_updates")]
    if min(values) > 0 and max(values) > WIDE * min(values):
        middle.set_yscale("log")
    middle.set_ylabel(outcome["metric"])
    middle.legend(frameon=False, fontsize="small")
    timed = [row for row in rows if row["samples_per_second"] is not None]
    below.plot([row["global_batch"] for row in timed], [row["samples_per_second"] for row in timed], "o-", color=GREY)
    below.set_ylabel("samples a second")
    if timed:
        log_axis(below, "y")
    batch_axis(below, [row["global_batch"] for row in outcome["rows"]])
    for axes in (above, middle):
        axes.tick_params(labelbottom=False)
    above.set_title(f"{name}: use of samples, metric, and speed by global batch")
    return figure


def _use(axes: Axes, rows: Sequence[Record]) -> None:
    value, low, high = ([row["relative"][end] for row in rows] for end in ("value", "low", "high"))
    below = [v - end for v, end in zip(value, low, strict=True)]
    above = [end - v for v, end in zip(value, high, strict=True)]
    axes.errorbar([row["global_batch"] for row in rows], value, yerr=[below, above], fmt="o-", color="tab:blue")
