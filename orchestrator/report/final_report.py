"""The last words of a sweep, and the plan of a dry run, written to a rich console."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.table import Table

from orchestrator.report import formats, tables
from orchestrator.report.plan import Plan

_OTHER_COUNTS = ("stopped", "failed", "diverged", "unfinished", "reused")


def write(out: RichConsole, summary: Mapping[str, Any], run_dir: str) -> None:
    """The tables, the best setting, what to do next, and as the last line `run_dir`."""
    values = " and ".join(summary["objective"]["values"])
    out.print()
    title = f"By global batch (split: micro x accumulation x world), best {values}"
    write_table(out, title, tables.batch_table(summary))
    if summary["rules"]:
        title = "LR rules with one base LR for all batches, against an LR tuned at each"
        write_table(out, title, tables.rules_table(summary["rules"]))
    if summary["repeats"]:
        write_table(out, "Settings repeated under other seeds", tables.repeats_table(summary["repeats"]))
    out.print(f"[bold]Trials:[/bold] {_counts(summary['counts'])}")
    if summary["pareto_front"] is not None:
        _write_front(out, summary)
    else:
        _write_best(out, summary)
    write_list(out, "Warnings", summary["warnings"])
    write_list(out, "Next", summary["next"])
    write_last(out, run_dir)


def write_reasons(out: RichConsole, summary: Mapping[str, Any], run_dir: str) -> None:
    """The last words where nothing but the warnings can be told; the last line is `run_dir`."""
    out.print()
    write_list(out, "Warnings", summary["warnings"])
    out.file.write(f"{run_dir}\n")
    out.file.flush()


def write_plan(out: RichConsole, plan: Plan) -> None:
    """The whole plan; says at the end that nothing was started."""
    out.print(f"[bold]{escape(plan.name)}[/bold]: task {escape(plan.task)}, {escape(plan.objective)}\n")
    write_table(out, "Searched", tables.candidates_table(plan))
    combinations = plan.combinations
    size = "a continuous space" if combinations is None else f"{combinations:,} combinations"
    out.print(f"{plan.trials} trials out of {size}; {escape(plan.search)}\n")
    write_table(out, "Batches", tables.planned_batches_table(plan))
    gangs = f"{_plural(plan.gangs, 'gang')} of {_plural(plan.workers_per_gang, 'worker')}"
    out.print(
        f"A trial sees {plan.budget_samples:,} samples and is evaluated every {plan.eval_every_samples:,}. "
        f"{plan.trials_at_once} at once, on {gangs}."
    )
    for name, amount in plan.needed.items():
        out.print(f"{name}: {amount:g} needed, {plan.available.get(name, 0):g} available")
    write_list(out, "Warnings", plan.warnings)
    out.print(f"tracking: {escape(plan.tracking_uri)}", soft_wrap=True)
    out.print(f"output:   {escape(plan.output)}", soft_wrap=True)
    out.print("Dry run: nothing was started.")


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def write_table(out: RichConsole, title: str, table: Table) -> None:
    """A table under its title."""
    out.print(f"[bold]{escape(title)}[/bold]")
    out.print(table)
    out.print()


def _write_front(out: RichConsole, summary: Mapping[str, Any]) -> None:
    """The trials that no other beats in one value without losing in the other."""
    out.print("[bold]Pareto front:[/bold]" + ("" if summary["pareto_front"] else " empty, for no trial has a value"))
    for point in summary["pareto_front"]:
        spec = point["spec"]
        values = ", ".join(
            f"{formats.number(value)} {name}"
            for name, value in zip(summary["objective"]["values"], point["value"], strict=True)
        )
        lr = formats.lr(spec["lr"]["peak"])
        setting = f"global batch {spec['plan']['global_batch']}, peak LR {lr} ({spec['lr']['rule']})"
        write_indented(out, f"{values}: {point['trial']}, {setting}", bullet="- ")


def _write_best(out: RichConsole, summary: Mapping[str, Any]) -> None:
    best = summary["best"]
    if best is None:
        out.print("[bold]Best:[/bold] none, for no trial finished with a value")
        return
    values = ", ".join(
        f"{name} {formats.number(value)}"
        for name, value in zip(summary["objective"]["values"], _as_list(best["value"]), strict=True)
    )
    out.print(f"[bold]Best:[/bold] {best['trial']}, {escape(values)}")
    plan, lr = best["spec"]["plan"], best["spec"]["lr"]
    write_indented(
        out,
        f"global batch {plan['global_batch']} = micro {plan['micro_batch']} x accumulation {plan['accumulation']} x "
        f"world size {plan['world_size']}; peak LR {formats.lr(lr['peak'])} ({lr['rule']} from "
        f"{formats.lr(lr['base'])} at batch {lr['reference_batch']}); warmup {lr['warmup_samples']:,} samples",
    )
    settings = " ".join(f"{key}={_plain(value)}" for key, value in best["params"].items())
    if settings:
        write_indented(out, settings)


def write_last(out: RichConsole, run_dir: str) -> None:
    """The run directory as the last line, past rich's wrapping: scripts take it as a path."""
    out.file.write(f"{run_dir}\n")
    out.file.flush()


def write_list(out: RichConsole, title: str, sentences: Any) -> None:
    """Sentences under a title; nothing if there are none."""
    if sentences:
        out.print(f"[bold]{title}:[/bold]")
    for sentence in sentences:
        write_indented(out, sentence, bullet="- ")


def write_indented(out: RichConsole, text: str, *, bullet: str = "") -> None:
    """`text` wrapped to the console and indented; rich's own padding would fill each line with blanks."""
    indent = "  " + " " * len(bullet)
    wrapped = textwrap.fill(text, out.width, initial_indent=f"  {bullet}", subsequent_indent=indent)
    out.print(escape(wrapped), soft_wrap=True)


def _counts(counts: Mapping[str, int]) -> str:
    at_target = f" ({counts['target_reached']} at the target)" if counts["target_reached"] else ""
    others = [f"{number} {name}" for name, number in counts.items() if number and name in _OTHER_COUNTS]
    return ", ".join([f"{counts['completed']} completed{at_target}", *others])


def _plain(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
