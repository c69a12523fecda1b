"""The last words of a scaling check, written to a rich console from its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console as RichConsole

from orchestrator.report import formats
from orchestrator.report.final_report import write_indented, write_last, write_list, write_table
from orchestrator.report.tables import grid

Record = Mapping[str, Any]


def write(out: RichConsole, summary: Record, run_dir: str) -> None:
    """The table, the plain sentences, and as the last line `run_dir`."""
    out.print()
    if summary["rows"]:
        title = f"{summary['metric']} after {summary['equal_samples']:,} samples, {summary['seeds']} seeds each"
        columns = ("N", "B", "LR", "mean", "sd", "lost", "interval", "verdict")
        write_table(out, title, grid(columns, map(_row, summary["rows"])))
    samples = summary["samples"]
    out.print(f"[bold]Runs:[/bold] {samples['runs']}, {formats.count(samples['spent'])} samples")
    out.print(f"[bold]Verdict:[/bold] {summary['verdict']}")
    out.print("[bold]Answer:[/bold]")
    for sentence in summary["sentences"]:
        write_indented(out, sentence)
    write_list(out, "Warnings", summary["warnings"])
    write_last(out, run_dir)


def _row(row: Record) -> tuple[str, ...]:
    lost = row["lost"]
    known = lost["value"] is not None
    return (
        str(row["workers"]),
        str(row["global_batch"]),
        formats.lr(row["lr"]),
        f"{row['diverged']} diverged" if row["diverged"] else formats.number(row["mean"]),
        "-" if row["sd"] is None else f"{row['sd']:.3g}",
        f"{lost['value']:.3g}" if known else "-",
        f"{lost['low']:.3g} to {lost['high']:.3g}" if known else "-",
        row["verdict"],
    )
