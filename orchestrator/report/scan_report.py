"""The last words of a batch scan, written to a rich console from its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console as RichConsole

from orchestrator.report import formats
from orchestrator.report.branch_report import with_interval
from orchestrator.report.final_report import write_indented, write_last, write_list, write_table
from orchestrator.report.tables import grid

Record = Mapping[str, Any]


def write(out: RichConsole, summary: Record, run_dir: str) -> None:
    """The table, the plain sentences, and as the last line `run_dir`."""
    out.print()
    if summary["rows"]:
        title = f"Use of samples against the smallest batch, and {summary['metric']}"
        if summary["equal_samples"] is not None:
            title += f", at {summary['equal_samples']:,.0f} samples and at {summary['equal_updates']:,} updates"
        columns = ("B", "LR", "use", "interval", "= samples", "= updates", "per s", "noise scale")
        write_table(out, title, grid(columns, map(_row, summary["rows"])))
    samples = summary["samples"]
    out.print(f"[bold]Runs:[/bold] {samples['runs']}, {formats.count(samples['spent'])} samples")
    out.print("[bold]Answer:[/bold]")
    for sentence in summary["sentences"]:
        write_indented(out, sentence)
    write_list(out, "Warnings", summary["warnings"])
    write_last(out, run_dir)


def _row(row: Record) -> tuple[str, ...]:
    share = row["relative"]
    known = share["value"] is not None
    return (
        str(row["global_batch"]),
        formats.lr(row["lr"]),
        "diverged" if row["diverged"] else f"x{share['value']:.2f}" if known else "-",
        f"{share['low']:.2f} to {share['high']:.2f}" if known else "-",
        formats.number(row["at_equal_samples"]),
        formats.number(row["at_equal_updates"]),
        "-" if row["samples_per_second"] is None else formats.count(row["samples_per_second"]),
        with_interval(row["noise_scale"]),
    )
