"""The figures of a critical-batch study, drawn from its summary: samples and updates, learning rates, noise scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from orchestrator.report import formats
from orchestrator.report.figures import GREY, batch_axis, log_axis, panels, save

Record = Mapping[str, Any]


def write_study_figures(outcome: Record, name: str, folder: Path) -> list[Path]:
    """Draw what there is to draw into `folder` as PNG files; the paths written."""
    if not any(rung["best_lr"] is not None for rung in outcome.get("ladder", [])):
        return []
    figures = {"to_target_by_batch": to_target(outcome, name), "lr_by_batch": lr_by_batch(outcome, name)}
    if outcome["noise_scale"].get("along_training"):
        figures["noise_scale"] = noise_scale(outcome, name)
    folder.mkdir(parents=True, exist_ok=True)
    return [save(figure, folder / f"{title}.png") for title, figure in figures.items()]


def to_target(outcome: Record, name: str) -> Figure:
    """Samples (above) and updates (below) to the target by global batch, with the fitted curve and its band."""
    figure, (above, below) = panels(2)
    rungs = [rung for rung in outcome["ladder"] if rung["samples_to_target"] is not None]
    curve = [point for point in outcome["fit"]["curve"] if point["value"] is not None]
    for axes, per_batch, label in ((above, False, "samples to target"), (below, True, "updates to target")):
        _points(axes, rungs, per_batch)
        if curve:
            _band(axes, curve, per_batch)
        log_axis(axes, "y")
        axes.set_ylabel(label)
    critical, target = outcome["critical_batch"], outcome["target"]
    if critical["value"] is not None:
        for axes in (above, below):
            axes.axvline(critical["value"], color="tab:red", linewidth=1.2, label="critical batch")
            axes.axvspan(critical["low"], critical["high"], color="tab:red", alpha=0.12, linewidth=0)
    batch_axis(below, [rung["global_batch"] for rung in outcome["ladder"]])
    above.tick_params(labelbottom=False)
    above.legend(frameon=False, fontsize="small")
    above.set_title(f"{name}: to {target['metric']} = {formats.number(target['value'])}")
    return figure


def lr_by_batch(outcome: Record, name: str) -> Figure:
    """The best learning rate by global batch, with the power law up to the critical batch."""
    figure, (axes,) = panels(1)
    rungs = [rung for rung in outcome["ladder"] if rung["best_lr"] is not None]
    batches = np.array([rung["global_batch"] for rung in rungs])
    best = np.array([rung["best_lr"] for rung in rungs])
    reach = np.exp(1.96 * np.array([rung["best_lr_se_log"] for rung in rungs]))
    axes.errorbar(
        batches, best, yerr=[best - best / reach, best * reach - best], fmt="o", color="tab:blue", label="best LR"
    )
    used = [rung for rung in rungs if rung["lr"] is not None]
    x, y = [rung["global_batch"] for rung in used], [rung["lr"] for rung in used]
    axes.plot(x, y, marker="_", markersize=14, linestyle="none", color=GREY, label="of the final runs")
    found = outcome["lr_exponent"]
    if found["alpha"] is not None:
        line = np.geomspace(min(found["batches"]), max(found["batches"]), 50)
        label = f"B^{found['alpha']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
        axes.plot(line, found["lr_at_one"] * line ** found["alpha"], color="tab:orange", label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.lr(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("peak LR")
    batch_axis(axes, [rung["global_batch"] for rung in outcome["ladder"]])
    axes.legend(frameon=False, fontsize="small")
    axes.set_title(f"{name}: best learning rate by global batch, {found['optimizer']}")
    return figure


def noise_scale(outcome: Record, name: str) -> Figure:
    """The noise scale along training of the final runs nearest the critical batch, which stands beside it."""
    figure, (axes,) = panels(1)
    found, critical = outcome["noise_scale"], outcome["critical_batch"]
    path = found["along_training"]
    x = [point["samples_seen"] for point in path]
    axes.plot(x, [point["value"] for point in path], color="tab:blue", label="noise scale")
    low, high = ([point[end] for point in path] for end in ("low", "high"))
    axes.fill_between(x, low, high, color="tab:blue", alpha=0.15, linewidth=0)
    if critical["value"] is not None:
        axes.axhline(critical["value"], color="tab:red", linewidth=1.2, label="critical batch")
        axes.axhspan(critical["low"], critical["high"], color="tab:red", alpha=0.12, linewidth=0)
    log_axis(axes, "x")
    log_axis(axes, "y")
    axes.set_xlabel("samples seen")
    axes.set_ylabel("samples")
    axes.legend(frameon=False, fontsize="small")
    axes.set_title(f"{name}: noise scale along training at batch {found['global_batch']}, {found['seeds']} seeds")
    return figure


def _points(axes: Axes, rungs: Sequence[Record], per_batch: bool) -> None:
    for rung in rungs:
        divide = rung["global_batch"] if per_batch else 1.0
        seeds = [samples / divide for samples in rung["seed_samples"]]
        axes.plot([rung["global_batch"]] * len(seeds), seeds, ".", color=GREY, alpha=0.6, markersize=4)
    batches = np.array([rung["global_batch"] for rung in rungs])
    divide = batches if per_batch else np.ones(len(rungs))
    value, low, high = (
        np.array([rung[end] or rung["samples_to_target"] for rung in rungs]) / divide
        for end in ("samples_to_target", "low", "high")
    )
    axes.errorbar(batches, value, yerr=[value - low, high - value], fmt="o", color="tab:blue", label="measured")


def _band(axes: Axes, curve: Sequence[Record], per_batch: bool) -> None:
    x = np.array([point["global_batch"] for point in curve])
    divide = x if per_batch else np.ones(len(x))
    value, low, high = (np.array([point[end] for point in curve]) / divide for end in ("value", "low", "high"))
    axes.plot(x, value, color="tab:orange", label="fit")
    axes.fill_between(x, low, high, color="tab:orange", alpha=0.2, linewidth=0)
