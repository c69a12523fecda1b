"""Tables for people, as rich renderables: the results of a sweep, and its plan. They fit into 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from orchestrator.report import formats
from orchestrator.report.plan import Plan

Record = Mapping[str, Any]


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[str] = ()) -> Table:
    """A table with a rule under its heading; columns named in `left` are left-aligned, the others right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def batch_table(summary: Record) -> Table:
    """The best trial of each global batch; the winner is marked with a star."""
    winner = summary["best"]["trial"] if summary["best"] else None
    return grid(
        ("B", "split", "finished", "best", "trial", "peak LR", "rule", "warmup", "updates"),
        (_batch_row(record, winner) for record in summary["by_batch"]),
        left=("trial", "rule"),
    )


def _batch_row(record: Record, winner: str | None) -> tuple[str, ...]:
    batch, finished = str(record["global_batch"]), f"{record['finished']}/{record['trials']}"
    if record["best_trial"] is None:
        return (batch, "-", finished, "-", "-", "-", "-", "-", "-")
    return (
        batch,
        "x".join(str(record[name]) for name in ("micro_batch", "accumulation", "world_size")),
        finished,
        formats.number(record["best_value"]),
        record["best_trial"] + ("*" if record["best_trial"] == winner else " "),
        formats.lr(record["peak_lr"]),
        record["rule"],
        formats.count(record["warmup_samples"]),
        formats.count(record["updates"]),
    )


def rules_table(rules: Sequence[Record]) -> Table:
    """Each rule at one common base LR, and how far that is behind an LR tuned at each batch."""
    table = grid(
        ("rule", "base LR", "batches", "mean", "behind", "at worst", "remark"),
        map(_rule_row, rules),
        left=("rule", "remark"),
    )
    table.columns[-1].no_wrap = False
    return table


def _rule_row(rule: Record) -> tuple[str, ...]:
    covered = f"{rule['covered']}/{rule['total']}"
    if rule["reason"]:
        return (rule["rule"], "-", covered, "-", "-", "-", "not determined")
    worst = max((b for b in rule["batches"] if b["shortfall"] is not None), key=lambda b: b["shortfall"])
    remarks = [
        *(["at edge"] if rule["at_edge"] else []),
        *(["interpolated"] if any(b["interpolated"] for b in rule["batches"]) else []),
    ]
    return (
        rule["rule"],
        formats.lr(rule["base_lr"]),
        covered,
        formats.number(rule["mean_value"]),
        formats.number(rule["mean_shortfall"]),
        f"{formats.number(worst['shortfall'])} at {worst['global_batch']}",
        ", ".join(remarks),
    )


def repeats_table(repeats: Sequence[Record]) -> Table:
    """Mean and spread of the settings that were trained under several seeds."""
    rows = (
        (
            record["trial"],
            str(record["global_batch"]),
            formats.lr(record["peak_lr"]),
            record["measure"],
            str(record["n"]),
            formats.number(record["mean"]),
            formats.number(record["standard_deviation"]),
            "-" if record["low"] is None else f"{formats.number(record['low'])} to {formats.number(record['high'])}",
        )
        for record in repeats
    )
    columns = ("trial", "B", "peak LR", "measure", "seeds", "mean", "st. dev.", "95 % of mean")
    return grid(columns, rows, left=("trial", "measure"))


def candidates_table(plan: Plan) -> Table:
    """What is tried for each parameter."""
    table = grid(
        ("parameter", "values", "candidates"),
        ((c.key, c.text, "any" if c.count is None else str(c.count)) for c in plan.candidates),
        left=("parameter", "values"),
    )
    table.columns[1].no_wrap = False
    return table


def planned_batches_table(plan: Plan) -> Table:
    """How each global batch is made, and what a trial with it does."""
    rows = (
        (
            str(planned.plan.global_batch),
            str(planned.plan.micro_batch),
            str(planned.plan.accumulation),
            str(planned.plan.world_size),
            f"{planned.updates:,}",
            str(planned.evaluations),
        )
        for planned in plan.batches
    )
    return grid(("global", "micro", "accumulation", "world size", "updates", "evaluations"), rows)
