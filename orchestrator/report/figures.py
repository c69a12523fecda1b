"""The figures that a person wants first: the metric by samples for each batch, and the best of each batch.

Drawn on matplotlib figures of their own, without pyplot and its global state, so that any thread may draw.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, LogLocator, NullFormatter

from orchestrator.report import formats
from orchestrator.report.history import Event, SweepHistory, TrialHistory
from orchestrator.report.objective import Objective
from orchestrator.report.rules import compared_rules
from orchestrator.theory.lr_rules import scale

DPI = 120
MAX_LEGEND_BATCHES = 12
GREY = "0.55"
_RULE_STYLES = {"none": ":", "sqrt": "-", "linear": "--", "power": "-.", "noise": (0, (5, 1, 1, 1)), "sde": (0, (1, 1))}


def write_figures(events: Iterable[Event], folder: Path) -> list[Path]:
    """Draw the figures of a sweep into `folder` as PNG files; the paths written, none before the first evaluation.

    Files are replaced whole, so that a reader never sees half a figure.
    """
    events = list(events)
    if not any(event["event"] == "evaluation" for event in events):
        return []
    history = SweepHistory.of(events)
    figures = {"metric_by_samples": metric_by_samples(history), "best_by_batch": best_by_batch(history)}
    objective = Objective.of(history)
    if len(objective.names) == 2 and objective.ranked(history.searched):
        figures["updates_against_samples"] = updates_against_samples(history)
    folder.mkdir(parents=True, exist_ok=True)
    return [save(figure, folder / f"{name}.png") for name, figure in figures.items()]


def metric_by_samples(history: SweepHistory) -> Figure:
    """The objective's metric over samples seen, a line a trial, coloured by global batch; each batch's best is bold.

    The vertical range is that of the bold lines from an eighth of the budget on: the first steep part, and a trial that
    is far off, leave the frame instead of flattening what is to be compared.
    """
    objective = Objective.of(history)
    trials = [trial for trial in history.searched if _curve(trial, objective.metric)[0]]
    colors = batch_colors(trial.global_batch for trial in trials)
    bold = {ranked[0].trial for batch in colors if (ranked := _ranked_curves(trials, batch, objective))}
    figure, (axes,) = panels(1)
    for trial in sorted(trials, key=lambda t: t.trial in bold):
        samples, values = _curve(trial, objective.metric)
        is_bold = trial.trial in bold
        axes.plot(
            samples,
            values,
            color=colors[trial.global_batch],
            linewidth=2.2 if is_bold else 0.8,
            alpha=1.0 if is_bold else 0.45,
            marker="o" if len(samples) == 1 else None,
            markersize=3,
            label=f"{trial.global_batch}" if is_bold else None,
        )
    _fit_to(axes, _compared_values([trial for trial in trials if trial.trial in bold], objective))
    if objective.target is not None:
        axes.axhline(objective.target, color=GREY, linestyle="--", linewidth=1)
        axes.annotate(
            "target", (1, objective.target), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=GREY
        )
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("samples seen")
    axes.set_ylabel(objective.metric)
    axes.set_title(f"{history.started['name']}: {objective.metric} by samples seen, best trial of each batch bold")
    _batch_legend(axes, colors)
    return figure


def best_by_batch(history: SweepHistory) -> Figure:
    """Above: each finished trial's value by global batch, the best of each joined, the winner starred.

    Below: every peak LR tried, the best of each batch joined, and what each LR rule gives from its best common base.
    With two objectives the last one, samples, is shown, and no winner.
    """
    objective = Objective.of(history)
    finished = objective.ranked(history.searched)
    best: dict[int, TrialHistory] = {}
    for trial in finished:
        best.setdefault(trial.global_batch, trial)
    batches = sorted(best)
    figure, (above, below) = panels(2)
    _value_panel(above, objective, finished, [best[batch] for batch in batches])
    _lr_panel(below, history, objective, [best[batch] for batch in batches])
    title = "best of each global batch"
    if finished and len(objective.names) == 1:
        title += ", the winner starred"
        winner = finished[0]
        for axes, y in ((above, _last_value(winner, objective)), (below, winner.peak_lr)):
            axes.plot(winner.global_batch, y, marker="*", markersize=15, color="tab:red", zorder=5, linestyle="none")
    batch_axis(below, sorted({trial.global_batch for trial in history.searched}))
    above.tick_params(labelbottom=False)
    above.set_title(f"{history.started['name']}: {title}")
    return figure


def updates_against_samples(history: SweepHistory) -> Figure:
    """What the target cost each trial in updates (time, given devices) and samples (compute), with the Pareto front.

    It needs at least one trial that reached the target.
    """
    objective = Objective.of(history)
    finished = objective.ranked(history.searched)
    colors = batch_colors(trial.global_batch for trial in finished)
    figure, (axes,) = panels(1)
    for batch, color in colors.items():
        points = np.array([trial.value for trial in finished if trial.global_batch == batch])
        axes.scatter(points[:, 1], points[:, 0], color=color, s=28, label=str(batch), zorder=3)
    front = np.array([trial.value for trial in objective.pareto_front(finished)]).reshape(-1, 2)
    axes.plot(front[:, 1], front[:, 0], color=GREY, linewidth=1.2, zorder=2)
    log_axis(axes, "x")
    log_axis(axes, "y")
    axes.set_xlabel(objective.names[1])
    axes.set_ylabel(objective.names[0])
    axes.set_title(f"{history.started['name']}: cost of the target; the line is the Pareto front")
    _batch_legend(axes, colors)
    return figure


def batch_colors(batches: Iterable[int]) -> dict[int, Any]:
    """A colour for each batch, ascending, by its place on a log scale; the palest part of the map is left out."""
    ordered = sorted(set(batches))
    if not ordered:
        return {}
    span = math.log(ordered[-1] / ordered[0]) or 1.0
    return {batch: colormaps["viridis"](0.9 * math.log(batch / ordered[0]) / span) for batch in ordered}


def _value_panel(
    axes: Axes, objective: Objective, finished: Sequence[TrialHistory], best: Sequence[TrialHistory]
) -> None:
    values = [_last_value(trial, objective) for trial in finished]
    axes.scatter([trial.global_batch for trial in finished], values, s=18, color=GREY, alpha=0.6, label="a trial")
    bests = [_last_value(trial, objective) for trial in best]
    axes.plot([trial.global_batch for trial in best], bests, marker="o", color="tab:blue", label="best of the batch")
    axes.set_ylabel(objective.names[-1])
    if objective.kind != "best_metric" and values:
        log_axis(axes, "y")
    else:
        # Ranked best first: the worst quarter may leave the frame.
        _fit_to(axes, [*bests, *values[: -(-3 * len(values) // 4)]])
    axes.legend(frameon=False, fontsize="small")


def _lr_panel(axes: Axes, history: SweepHistory, objective: Objective, best: Sequence[TrialHistory]) -> None:
    tried = [trial for trial in history.searched if trial.peak_lr > 0]
    for name, marker, chosen in (
        ("tried", "o", [trial for trial in tried if trial.status != "diverged"]),
        ("diverged", "x", [trial for trial in tried if trial.status == "diverged"]),
    ):
        if chosen:
            color = GREY if name == "tried" else "tab:red"
            x, y = [trial.global_batch for trial in chosen], [trial.peak_lr for trial in chosen]
            axes.scatter(x, y, s=18, marker=marker, color=color, alpha=0.6, label=name)
    x, y = [trial.global_batch for trial in best], [trial.peak_lr for trial in best]
    axes.plot(x, y, marker="o", markersize=8, linestyle="none", color="tab:blue", label="best of the batch", zorder=4)
    reference = history.spec["batch"]["reference"]
    span = sorted({trial.global_batch for trial in tried})
    for rule in compared_rules(history, objective):
        if not rule["reason"] and span:
            line = np.geomspace(span[0], span[-1], 50)
            parameters: Mapping[str, Any] = {name: rule[name] for name in ("exponent", "noise_scale")}
            peaks = [rule["base_lr"] * scale(rule["rule"], reference, batch, **parameters) for batch in line]
            axes.plot(
                line,
                peaks,
                color="tab:orange",
                linewidth=1.2,
                linestyle=_RULE_STYLES[rule["rule"]],
                label=f"rule {rule['rule']}",
            )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.lr(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("peak LR")
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))


def panels(count: int) -> tuple[Figure, Sequence[Axes]]:
    """A figure of so many panels above each other, over one horizontal axis."""
    figure = Figure(figsize=(8, 5 if count == 1 else 7), dpi=DPI, layout="constrained")
    all_axes = np.atleast_1d(figure.subplots(count, 1, sharex=True))
    for axes in all_axes:
        axes.grid(True, color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, list(all_axes)


def log_axis(axes: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis of counts."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: formats.count(value)))
    axis.set_minor_formatter(NullFormatter())


def batch_axis(axes: Axes, batches: Sequence[int]) -> None:
    """A logarithmic axis of global batches."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(batches) if len(batches) <= MAX_LEGEND_BATCHES else LogLocator(base=2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.set_xlabel("global batch (samples)")


def _batch_legend(axes: Axes, colors: Mapping[int, Any]) -> None:
    """Batches by size; of very many only evenly spaced ones, whose colours tell the rest."""
    labelled = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    batches = [batch for batch in colors if str(batch) in labelled]
    step = -(-len(batches) // MAX_LEGEND_BATCHES) if batches else 1
    shown = [str(batch) for batch in batches[::step]]
    if shown:
        axes.legend(
            [labelled[name] for name in shown],
            shown,
            title="global batch",
            frameon=False,
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
        )


def _fit_to(axes: Axes, values: Sequence[float]) -> None:
    if values and max(values) > min(values):
        margin = 0.08 * (max(values) - min(values))
        axes.set_ylim(min(values) - margin, max(values) + margin)


def _curve(trial: TrialHistory, metric: str) -> tuple[list[int], list[float]]:
    points = [(e["samples_seen"], e["metrics"][metric]) for e in trial.evaluations if metric in e["metrics"]]
    return [samples for samples, _ in points], [value for _, value in points]


def _compared_values(trials: Sequence[TrialHistory], objective: Objective) -> list[float]:
    values = [] if objective.target is None else [objective.target]
    for trial in trials:
        samples, metric = _curve(trial, objective.metric)
        start = min(trial.spec["budget_samples"] / 8, samples[-1])
        values += [value for seen, value in zip(samples, metric, strict=True) if seen >= start]
    return values


def _ranked_curves(trials: Sequence[TrialHistory], batch: int, objective: Objective) -> list[TrialHistory]:
    """The batch's finished trials, best first; before any has finished, its trials by their latest metric."""
    of_batch = [trial for trial in trials if trial.global_batch == batch]
    sign = 1.0 if objective.metric_mode == "min" else -1.0
    return objective.ranked(of_batch) or sorted(of_batch, key=lambda t: sign * _curve(t, objective.metric)[1][-1])


def _last_value(trial: TrialHistory, objective: Objective) -> float:
    values = objective.values_of(trial.value)
    if values is None:
        raise ValueError(f"{trial.trial} has no finite value to draw")
    return values[-1]


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, replaced whole; its path."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    figure.savefig(part, format="png")
    os.replace(part, path)
    return path
