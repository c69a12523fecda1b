"""The figures of a study by branches, drawn from its summary: rates by batch, and estimates along training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orchestrator.report import formats
from orchestrator.report.figures import GREY, batch_axis, batch_colors, log_axis, panels, save

Record = Mapping[str, Any]


def write_branch_figures(outcome: Record, name: str, folder: Path) -> list[Path]:
    """Draw what there is to draw into `folder` as PNG files; the paths written."""
    if not outcome["checkpoints"]:
        return []
    figures = {}
    if any(row["rate"] is not None for one in outcome["checkpoints"] for row in one["batches"]):
        figures["branch_rates"] = branch_rates(outcome, name)
    if outcome["along_training"] or _told(outcome):
        figures["noise_scale"] = noise_along_training(outcome, name)
    folder.mkdir(parents=True, exist_ok=True)
    return [save(figure, folder / f"{title}.png") for title, figure in figures.items()]


def branch_rates(outcome: Record, name: str) -> Figure:
    """How fast the loss falls per sample by global batch, a colour a checkpoint, with fits and their bands.

    Bars are standard errors. Where a fit halves it is marked, with its interval.
    """
    figure, (axes,) = panels(1)
    checkpoints = outcome["checkpoints"]
    colors = batch_colors(one["samples_seen"] for one in checkpoints)
    for one in checkpoints:
        color, local = colors[one["samples_seen"]], one["local_critical_batch"]
        rows = [row for row in one["batches"] if row["rate"] is not None]
        axes.errorbar(
            [row["global_batch"] for row in rows],
            [row["rate"] for row in rows],
            yerr=[row["rate_se"] or 0.0 for row in rows],
            fmt="o",
            markersize=5,
            color=color,
            label=f"after {formats.count(one['samples_seen'])} samples",
        )
        _band(axes, one["curve"], color)
        rate0 = local["rate0"]["value"]
        if local["local_critical_batch"] is not None and rate0 is not None:
            axes.plot(
                [local["low"], local["high"]],
                [rate0 / 2] * 2,
                color=color,
                linewidth=3,
                alpha=0.5,
                solid_capstyle="butt",
            )
            axes.plot(local["local_critical_batch"], rate0 / 2, marker="|", markersize=14, color=color)
    log_axis(axes, "y")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    in_folds = all(one["local_critical_batch"]["in_folds"] for one in checkpoints)
    axes.set_ylabel("e-folds of loss a sample" if in_folds else "1 / samples to a common loss")
    batch_axis(axes, sorted({row["global_batch"] for one in checkpoints for row in one["batches"]}))
    axes.legend(frameon=False, fontsize="small")
    axes.set_title(f"{name}: rate of learning of branches; a bar where it has halved")
    return figure


def noise_along_training(outcome: Record, name: str) -> Figure:
    """The noise scale along the parent run with its band, and the critical batches at the checkpoints."""
    figure, (axes,) = panels(1)
    path = outcome["along_training"]
    x = [point["samples_seen"] for point in path]
    axes.plot(x, [point["value"] for point in path], color="tab:blue", label="noise scale")
    low, high = ([point[end] for point in path] for end in ("low", "high"))
    axes.fill_between(x, low, high, color="tab:blue", alpha=0.15, linewidth=0)
    told = _told(outcome)
    if told:
        at = [one["samples_seen"] for one in told]
        found = [one["local_critical_batch"] for one in told]
        value = [one["local_critical_batch"] for one in found]
        reach = [
            [v - one["low"] for v, one in zip(value, found, strict=True)],
            [one["high"] - v for v, one in zip(value, found, strict=True)],
        ]
        axes.errorbar(at, value, yerr=reach, fmt="o", color="tab:red", label="local critical batch")
        steps = [(one["samples_seen"], one["local_critical_batch"]["one_step"]["value"]) for one in told]
        known = [(seen, step) for seen, step in steps if step is not None]
        axes.plot(
            [seen for seen, _ in known],
            [step for _, step in known],
            marker="_",
            markersize=14,
            linestyle="none",
            color=GREY,
            label="one-step critical batch",
        )
    log_axis(axes, "x")
    log_axis(axes, "y")
    axes.set_xlabel("samples seen")
    axes.set_ylabel("samples")
    axes.legend(frameon=False, fontsize="small")
    axes.set_title(f"{name}: noise scale and local critical batch along training")
    return figure


def _told(outcome: Record) -> list[Record]:
    return [one for one in outcome["checkpoints"] if one["local_critical_batch"]["local_critical_batch"] is not None]


def _band(axes: Axes, curve: Sequence[Record], color: Any) -> None:
    x = [point["global_batch"] for point in curve]
    axes.plot(x, [point["value"] for point in curve], color=color, linewidth=1.2)
    low, high = ([point[end] or point["value"] for point in curve] for end in ("low", "high"))
    axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
