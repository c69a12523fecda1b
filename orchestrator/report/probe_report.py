"""The last words of a probe, written to a rich console from its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console as RichConsole

from orchestrator.report import formats
from orchestrator.report.final_report import write_indented, write_last, write_list, write_table
from orchestrator.report.tables import grid

Record = Mapping[str, Any]


def write(out: RichConsole, summary: Record, run_dir: str) -> None:
    """Tables of memory, speed, scaling and savings, the plain sentences, and as the last line `run_dir`."""
    out.print()
    memory = summary["memory"]
    if memory["predicted"]:
        _write_memory(out, memory)
    if summary["timings"]:
        title = "Speed by micro batch, accumulation and workers, and where an update's time goes (%)"
        columns = ("micro", "acc", "workers", "ms", "per s", "data", "fwd", "bwd", "comm", "opt")
        write_table(out, title, grid(columns, map(_timing, summary["timings"])))
    if summary["scaling"]["weak"]:
        names = ("workers", "micro", "same micro (weak)", "global", "same global (strong)")
        write_table(out, "Efficiency of several workers", grid(names, _scaling(summary["scaling"])))
    if summary["savers"]:
        heads = ("what", "micro", "frees", "time")
        write_table(out, "What saves memory", grid(heads, map(_saver, summary["savers"]), left=("what",)))
    if summary["recommendation"] and summary["recommendation"]["choices"]:
        _write_choices(out, summary["recommendation"])
    out.print("[bold]Answer:[/bold]")
    for sentence in summary["sentences"]:
        write_indented(out, sentence, bullet="- ")
    write_list(out, "Warnings", summary["warnings"])
    write_last(out, run_dir)


def _write_memory(out: RichConsole, memory: Record) -> None:
    title = f"Predicted memory of an update, device {formats.size(int(memory['device_bytes']))}"
    columns = ("micro", "peak", "params", "grads", "optim.", "activ.", "rest", "eval")
    rows = [_use(use) for use in memory["predicted"]]
    write_table(out, title, grid(columns, rows))
    worst = [one for one in memory.get("grows", ()) if one["bytes_per_sample"] > 0][:3]
    if worst:
        told = ", ".join(f"{_module(one)} ({formats.size(int(one['bytes_per_sample']))})" for one in worst)
        write_indented(out, f"Activations a sample grow most in {told}.")
    found = [f"{r['what']}: frees up to {formats.size(r['frees_bytes'])}; {r['keeps']}" for r in memory["remedies"]]
    write_list(out, "If it does not fit, in this order", found)
    out.print()


def _module(one: Record) -> str:
    return f"{one['layer']} {one['module']}" if one["module"] else "the loss"


def _use(use: Record) -> tuple[str, ...]:
    names = ("parameters", "gradients", "optimizer")
    sizes = [use["peak_bytes"], *(use[n] for n in names), sum(use["activations"].values()), use["rest"]]
    return (str(use["micro_batch"]), *map(formats.size, [*sizes, use["evaluation_bytes"]]))


def _timing(row: Record) -> tuple[str, ...]:
    shares = [f"{100 * row['shares'][name]:.0f}" for name in _PARTS]
    step, speed = row["step_s"], row["samples_per_second"]
    return (
        str(row["micro_batch"]),
        str(row["accumulation"]),
        str(row["world_size"]),
        f"{1e3 * step['value']:.3g}",
        formats.count(speed["value"]),
        *shares,
    )


_PARTS = ("data", "forward", "backward", "communication", "optimizer")


def _scaling(scaling: Record) -> list[tuple[str, ...]]:
    strong = {(one["world_size"], one["micro_batch"]): one for one in scaling["strong"]}
    rows: list[tuple[str, ...]] = []
    for one in scaling["weak"]:
        other = strong.get((one["world_size"], one["micro_batch"]))
        rows.append(
            (
                str(one["world_size"]),
                str(one["micro_batch"]),
                _percent(one["efficiency"]),
                str(one["global_batch"]),
                _percent(other["efficiency"]) if other else "-",
            )
        )
    return rows


def _percent(found: Record) -> str:
    if found["value"] is None:
        return "-"
    ends = "" if found["low"] is None else f" ({100 * found['low']:.0f} to {100 * found['high']:.0f})"
    return f"{100 * found['value']:.0f} %{ends}"


def _saver(one: Record) -> tuple[str, ...]:
    time = "-" if one["time"] is None else f"x{one['time']['value']:.2f} at micro batch {one['timed_at']}"
    sign = "-" if one["frees_bytes"] < 0 else ""
    return one["name"], str(one["micro_batch"]), f"{sign}{formats.size(abs(one['frees_bytes']))}", time


def _write_choices(out: RichConsole, recommendation: Record) -> None:
    rows = []
    for name in ("fastest", "balanced", "cheapest"):
        one = recommendation[name]
        rows.append(
            (
                name,
                str(one["global_batch"]),
                f"{one['micro_batch']} x {one['accumulation']} x {one['world_size']}",
                formats.lr(one["lr"]) if one["lr"] is not None else "-",
                _span(one["time_s"], 1.0, "s"),
                _span(one["device_hours"], 3600.0, "device s"),
            )
        )
    columns = ("", "B", "micro x acc x workers", "LR", "time to target", "cost")
    write_table(out, "What to run", grid(columns, rows, left=("",)))


def _span(found: Record, factor: float, unit: str) -> str:
    value = f"{factor * found['value']:.3g}"
    if found["low"] is None or found["high"] is None:
        return f"{value} {unit}"
    return f"{value} ({factor * found['low']:.3g} to {factor * found['high']:.3g}) {unit}"
