"""What a probe would measure, written to a rich console."""

from __future__ import annotations

from rich.console import Console as RichConsole
from rich.markup import escape

from orchestrator.config.spec import SweepSpec


def write_plan(out: RichConsole, spec: SweepSpec, *, worlds: tuple[int, ...], cap: int, out_dir: str) -> None:
    """Says at the end that nothing was started.

    Args:
        worlds: numbers of workers that are timed.
        cap: the largest micro batch that the data allow one worker.
    """
    probe, cluster = spec.probe, spec.cluster
    given = "asked of the device" if cluster.device_memory is None else f"{cluster.device_memory:,} bytes"
    lines = [
        f"{spec.name}: memory and speed of task {spec.task.name}, optimizer {spec.optimizer.name}",
        f"micro batches: 1, 2, 4, ... up to {cap:,}, while an update lasts at most {probe.longest_update_s:g} s",
        f"workers: {', '.join(map(str, worlds))}",
        f"{probe.rounds} rounds of {probe.seconds:g} s in each geometry",
        f"memory of a device: {given}, {100 * cluster.memory_margin:.0f} % left free",
        f"output: {out_dir}",
        "Dry run: nothing was started.",
    ]
    for line in lines:
        out.print(escape(line), soft_wrap=True)
