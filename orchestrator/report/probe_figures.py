"""The figures of a probe, drawn from its summary: speed and memory by micro batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orchestrator.report.figures import GREY, batch_axis, log_axis, panels, save

Record = Mapping[str, Any]


def write_probe_figures(outcome: Record, name: str, folder: Path) -> list[Path]:
    """Draw what there is to draw into `folder` as PNG files; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {}
    if any(row["accumulation"] == 1 for row in outcome["timings"]):
        figures["speed"] = speed(outcome, name)
    if outcome["memory"]["predicted"]:
        figures["memory"] = memory(outcome, name)
    if outcome["recommendation"] and outcome["recommendation"]["choices"]:
        figures["front"] = front(outcome["recommendation"], name)
    return [save(figure, folder / f"{key}.png") for key, figure in figures.items()]


def speed(outcome: Record, name: str) -> Figure:
    """Samples a second and milliseconds an update by micro batch, a line for each number of workers; knees as bands."""
    figure, (above, below) = panels(2)
    rows = [row for row in outcome["timings"] if row["accumulation"] == 1]
    for world in sorted({row["world_size"] for row in rows}):
        curve = sorted((row for row in rows if row["world_size"] == world), key=lambda row: row["micro_batch"])
        micros = [row["micro_batch"] for row in curve]
        for axes, key, factor in ((above, "samples_per_second", 1.0), (below, "step_s", 1e3)):
            _with_interval(axes, micros, [row[key] for row in curve], factor, f"{world} worker{'s' * (world > 1)}")
    for knees in outcome["knees"]:
        if knees["world_size"] == 1 and not knees["reason"]:
            for key, color in (("doubling", "tab:orange"), ("ceiling", "tab:green")):
                _knee(above, knees[key], color, f"{key} knee")
    above.set_ylabel("samples a second")
    below.set_ylabel("ms an update")
    for axes in (above, below):
        log_axis(axes, "y")
    batch_axis(below, sorted({row["micro_batch"] for row in rows}))
    below.set_xlabel("micro batch (samples)")
    above.tick_params(labelbottom=False)
    above.legend(frameon=False, fontsize="small")
    above.set_title(f"{name}: speed by micro batch")
    return figure


def memory(outcome: Record, name: str) -> Figure:
    """Predicted peak by what it is made of, measured peaks, and what the device holds less the margin."""
    figure, (axes,) = panels(1)
    found = outcome["memory"]
    micros = [use["micro_batch"] for use in found["predicted"]]
    parts = {key: [use[key] / 2**20 for use in found["predicted"]] for key in ("parameters", "gradients", "optimizer")}
    parts["activations"] = [sum(use["activations"].values()) / 2**20 for use in found["predicted"]]
    parts["rest"] = [use["rest"] / 2**20 for use in found["predicted"]]
    axes.stackplot(micros, list(parts.values()), labels=list(parts), alpha=0.8)
    tried = [one for one in found["tries"] if one["fits"] and one["updates"]]
    axes.plot([o["micro_batch"] for o in tried], [o["peak_bytes"] / 2**20 for o in tried], "ko", label="measured")
    room = found["device_bytes"] * (1.0 - found["margin"]) / 2**20
    if room < 3.0 * max(use["peak_bytes"] for use in found["predicted"]) / 2**20:
        axes.axhline(room, color=GREY, linestyle="--", label="room")
    batch_axis(axes, micros)
    axes.set_xlabel("micro batch (samples)")
    axes.set_ylabel("MiB")
    axes.legend(frameon=False, fontsize="small", loc="upper left")
    axes.set_title(f"{name}: memory of an update")
    return figure


def front(recommendation: Record, name: str) -> Figure:
    """Device-hours against time to the target: every choice, the front, and the three that have a name."""
    figure, (axes,) = panels(1)
    for key, style, color in (("choices", ".", GREY), ("front", "o-", "tab:blue")):
        rows = recommendation[key]
        times, costs = ([row[name]["value"] for row in rows] for name in ("time_s", "device_hours"))
        axes.plot(times, costs, style, color=color, label=key)
    for key in ("fastest", "balanced", "cheapest"):
        row = recommendation[key]
        at = row["time_s"]["value"], row["device_hours"]["value"]
        axes.annotate(
            f"{key}: B {row['global_batch']}", at, textcoords="offset points", xytext=(6, 6), fontsize="small"
        )
    axes.set(xscale="log", yscale="log", xlabel="seconds to the target", ylabel="device-hours")
    axes.legend(frameon=False, fontsize="small")
    axes.set_title(f"{name}: time and cost to the target")
    return figure


def _with_interval(axes: Axes, x: list[int], found: list[Record], factor: float, label: str) -> None:
    axes.plot(x, [factor * one["value"] for one in found], "o-", label=label)
    if all(one["low"] is not None for one in found):
        low, high = ([factor * one[end] for one in found] for end in ("low", "high"))
        axes.fill_between(x, low, high, alpha=0.2)


def _knee(axes: Axes, knee: Record, color: str, label: str) -> None:
    if knee["value"] is not None:
        axes.axvline(knee["value"], color=color, linewidth=1.0, label=label)
    if knee["low"] is not None and knee["high"] is not None:
        axes.axvspan(knee["low"], knee["high"], color=color, alpha=0.1)
