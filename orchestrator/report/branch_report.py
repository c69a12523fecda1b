"""The last words of a study by branches, written to a rich console from its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console as RichConsole

from orchestrator.report import formats
from orchestrator.report.final_report import write_indented, write_last, write_list, write_table
from orchestrator.report.tables import grid

Record = Mapping[str, Any]
_CHECKPOINT = ("after", "loss", "rate halves at", "one-step", "tolerance", "noise scale")
_BATCH = ("B", "LR", "seeds", "rate", "+-", "fitted", "final loss", "above")


def write(out: RichConsole, summary: Record, run_dir: str) -> None:
    """The estimates at each checkpoint, the rates at the last, the plain sentence, and as the last line `run_dir`."""
    out.print()
    checkpoints = summary["checkpoints"]
    if checkpoints:
        write_table(
            out,
            "Local critical batches by checkpoint, in samples",
            grid(_CHECKPOINT, map(_checkpoint_row, checkpoints)),
        )
        last = checkpoints[-1]
        unit = "in e-folds of loss" if last["local_critical_batch"]["in_folds"] else "of falls to a common loss,"
        title = (
            f"Branches after {last['samples_seen']:,} samples, {summary['length_samples']:,} long; rates {unit} a "
            "thousand samples"
        )
        write_table(out, title, grid(_BATCH, map(_batch_row, last["batches"])))
    samples = summary["samples"]
    out.print(
        f"[bold]Runs:[/bold] {samples['runs']}, {formats.count(samples['spent'])} samples, "
        f"{formats.count(samples['branches'])} of them in branches"
    )
    out.print(f"[bold]Verdict:[/bold] {summary['verdict']}")
    out.print("[bold]Answer:[/bold]")
    write_indented(out, summary["sentence"])
    write_list(out, "Warnings", summary["warnings"])
    write_last(out, run_dir)


def with_interval(found: Record, name: str = "value") -> str:
    """A count of samples with its interval; ``-`` if it is not determined."""
    value, low, high = found[name], found["low"], found["high"]
    if value is None:
        return "-"
    if low is None or high is None:
        return formats.count(value)
    return f"{formats.count(value)} ({formats.count(low)} to {formats.count(high)})"


def _checkpoint_row(one: Record) -> tuple[str, ...]:
    local, tolerance = one["local_critical_batch"], one["tolerance_batch"]
    least = ">=" if tolerance["all_within"] else ""
    return (
        formats.count(one["samples_seen"]),
        formats.number(one["loss"]),
        with_interval(local, "local_critical_batch"),
        with_interval(local["one_step"]),
        "-" if tolerance["tolerance_batch"] is None else f"{least}{tolerance['tolerance_batch']}",
        with_interval(one["noise_scale"]),
    )


def _batch_row(row: Record) -> tuple[str, ...]:
    rate, se, fitted = (None if row[name] is None else 1e3 * row[name] for name in ("rate", "rate_se", "fitted_rate"))
    return (
        str(row["global_batch"]),
        "-" if row["lr"] is None else formats.lr(row["lr"]),
        str(row["seeds"]),
        formats.number(rate),
        formats.number(se),
        formats.number(fitted),
        "diverged" if row["diverged"] else formats.number(row["final_loss"]),
        formats.number(row["above_smallest"]),
    )
