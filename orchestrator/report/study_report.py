"""The last words of a critical-batch study, written to a rich console from its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.table import Table

from orchestrator.config.spec import SweepSpec
from orchestrator.report import formats
from orchestrator.report.final_report import write_indented, write_last, write_list, write_table
from orchestrator.report.tables import grid

Record = Mapping[str, Any]


def write(out: RichConsole, summary: Record, run_dir: str) -> None:
    """The ladder, the estimates, the plain sentence, and as the last line `run_dir`."""
    out.print()
    if summary["ladder"]:
        target = summary["target"]
        sign = "<=" if target["mode"] == "min" else ">="
        write_table(
            out, f"To {target['metric']} {sign} {formats.number(target['value'])}, by global batch", _ladder(summary)
        )
        for line in _estimates(summary):
            write_indented(out, line)
        out.print()
    samples = summary["samples"]
    out.print(
        f"[bold]Runs:[/bold] {samples['runs']}, {formats.count(samples['spent'])} of at most "
        f"{formats.count(samples['most'])} samples; {formats.count(samples['final'])} in final runs"
    )
    out.print(f"[bold]Verdict:[/bold] {summary['verdict']}")
    write_indented(out, summary["reason"])
    out.print("[bold]Answer:[/bold]")
    write_indented(out, summary["sentence"])
    write_list(out, "Chosen", [*summary["chosen"], *_settings(summary)])
    write_list(out, "Warnings", summary["warnings"])
    write_last(out, run_dir)


def write_plan(
    out: RichConsole,
    spec: SweepSpec,
    *,
    method: str,
    batches: Sequence[int] | None,
    out_dir: str,
    warnings: Sequence[str] = (),
) -> None:
    """What a study would do; says at the end that nothing was started. `batches` None: they are still to be placed."""
    rates = spec.space.get("lr.base")
    told = (
        ", ".join(map(str, batches)) if batches else f"placed by the study, around batch {spec.batch.reference_batch}"
    )
    lines = [
        f"{spec.name}: {method}",
        f"task {spec.task.name}, optimizer {spec.optimizer.name}, {spec.objective.metric}",
        f"batches: {told}",
        f"learning rate: {spec.lr.base:g} at batch {spec.batch.reference_batch}"
        + (f", searched within {rates.to_form()}" if rates is not None else ""),
        f"a run trains at most {spec.budget.samples:,} samples, on {spec.cluster.workers} workers",
        *(f"warning: {text}" for text in warnings),
        f"output: {out_dir}",
        "Dry run: nothing was started.",
    ]
    for line in lines:
        out.print(escape(line), soft_wrap=True)


def _settings(summary: Record) -> list[str]:
    """The suggestions for other keys that won, and where."""
    won = [(rung["global_batch"], rung["settings"]) for rung in summary["ladder"] if rung["settings"]]
    return [
        f"at batch {batch}: {', '.join(f'{key} = {value}' for key, value in found.items())}" for batch, found in won
    ]


def _ladder(summary: Record) -> Table:
    columns = ("B", "best LR", "samples", "+- %", "updates", "seeds", "LRs tried", "noise scale", "fitted")
    return grid(columns, (_row(rung) for rung in summary["ladder"]))


def _row(rung: Record) -> tuple[str, ...]:
    noise, fitted = rung["noise_scale"], rung["fitted"]["value"]
    return (
        str(rung["global_batch"]),
        "-" if rung["best_lr"] is None else formats.lr(rung["best_lr"]),
        "-" if rung["samples_to_target"] is None else formats.count(rung["samples_to_target"]),
        "-" if rung["se_log"] is None else f"{100 * rung['se_log']:.1f}",
        "-" if rung["updates_to_target"] is None else formats.count(rung["updates_to_target"]),
        str(rung["seeds"]),
        str(rung["tried_lrs"]),
        "-" if noise is None else formats.count(noise["value"]),
        "-" if fitted is None else formats.count(fitted),
    )


def _estimates(summary: Record) -> list[str]:
    critical, noise, exponent = summary["critical_batch"], summary["noise_scale"], summary["lr_exponent"]
    percent = f"{100 * summary['confidence']:g} %"
    lines = []
    if critical["value"] is None:
        lines.append(f"critical batch: {critical['reason']}")
    else:
        lines.append(f"critical batch {_with_interval(critical)} samples at {percent} (Emin / Smin)")
        lines.append(f"cbs20 {_with_interval(summary['cbs20'])} samples (20 % more than the fewest samples)")
        lines.append(f"Emin {_with_interval(summary['emin'])} samples, Smin {_with_interval(summary['smin'])} updates")
    if exponent["alpha"] is None:
        lines.append(f"exponent of the best LR: {exponent['reason']}")
    else:
        out = ", ".join(exponent["ruled_out"]) or "no rule"
        lines.append(
            f"best LR ~ B^{exponent['alpha']:.2f} ({exponent['low']:.2f} to {exponent['high']:.2f}) up to the critical "
            f"batch with {exponent['optimizer']}: rules out {out}"
        )
    if noise["value"] is None:
        lines.append(f"noise scale: {noise['reason']}")
    else:
        ratio = noise["ratio_to_critical_batch"]
        beside = "" if ratio is None else f", {ratio:.2g} times the critical batch"
        lines.append(
            f"noise scale at the target {_with_interval(noise)} samples at batch {noise['global_batch']}{beside}"
        )
    return lines


def _with_interval(found: Record) -> str:
    value, low, high = (found[name] for name in ("value", "low", "high"))
    if value is None:
        return "not determined"
    if low is None or high is None:
        return formats.number(value)
    return f"{formats.number(value)} ({formats.number(low)} to {formats.number(high)})"
