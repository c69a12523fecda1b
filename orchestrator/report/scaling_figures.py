"""The figure of a scaling check, drawn from its summary: final values of every seed, and what is lost, by batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from orchestrator.report.figures import GREY, batch_axis, panels, save

Record = Mapping[str, Any]


def write_scaling_figures(outcome: Record, name: str, folder: Path) -> list[Path]:
    """Draw what there is to draw into `folder` as PNG files; the paths written."""
    if not any(row["lost"]["value"] is not None for row in outcome["rows"]):
        return []
    folder.mkdir(parents=True, exist_ok=True)
    return [save(scaling_by_batch(outcome, name), folder / "scaling.png")]


def scaling_by_batch(outcome: Record, name: str) -> Figure:
    """Above a line for each seed across the batches, below the loss of quality with its interval and the tolerance."""
    figure, (above, below) = panels(2)
    rows = [row for row in outcome["rows"] if not row["diverged"]]
    batches = [row["global_batch"] for row in rows]
    for values in zip(*(row["values"] for row in rows), strict=True):
        above.plot(batches, values, ".-", color=GREY, linewidth=0.6)
    above.plot(batches, [row["mean"] for row in rows], "o-", color="tab:blue", label="mean")
    above.set_ylabel(outcome["metric"])
    above.legend(frameon=False, fontsize="small")
    above.tick_params(labelbottom=False)
    compared = [row for row in rows if row["lost"]["value"] is not None]
    value, low, high = ([row["lost"][end] for row in compared] for end in ("value", "low", "high"))
    reach = [
        [v - end for v, end in zip(value, low, strict=True)],
        [end - v for v, end in zip(value, high, strict=True)],
    ]
    below.errorbar([row["global_batch"] for row in compared], value, yerr=reach, fmt="o", color="tab:blue", capsize=3)
    below.axhline(0.0, color=GREY, linewidth=0.8)
    if (tolerance := outcome["tolerance"]["value"]) is not None:
        below.axhline(tolerance, color="tab:red", linestyle="--", label=f"tolerance {tolerance:.3g}")
        below.legend(frameon=False, fontsize="small")
    below.set_ylabel("quality lost")
    batch_axis(below, [row["global_batch"] for row in outcome["rows"]])
    above.set_title(f"{name}: {outcome['metric']} by global batch after {outcome['equal_samples']:,} samples")
    return figure
