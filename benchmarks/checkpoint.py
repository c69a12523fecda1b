"""What checkpoints cost a training: one at every evaluation against none, side by side in one run.

Both run in the same two gloo processes, in turn, so that whatever else the machine does meets both alike. A ratio of a
pair is seconds of an update with checkpoints over those without: the writing thread takes time from training. What
training waits for (the copy into CPU memory) and how long the thread writes (serialise, hash, fsync) are told a
checkpoint, and the wait as a share of the default interval.

    python benchmarks/checkpoint.py [--pairs 11] [--seconds 4] [--folder DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from orchestrator.config.trial import LrPlan, OptimizerRef, TaskRef, TrialSpec
from orchestrator.tasks.arrays import TensorRows
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.training.checkpoint import Checkpoints, latest
from orchestrator.training.checkpointer import Checkpointer
from orchestrator.training.group import ProcessGroup
from orchestrator.training.loop import run_trial
from orchestrator.training.registry import load_task
from orchestrator.training.task import Task

WORKERS = 2
EVALUATIONS = 4  # a run
WIDTH = 3500  # of the layer that makes the large model: 3500 x 3500 fp32 parameters are 49 MB


class Large(Task):
    """A model of 50 MB whose data and evaluation cost nearly nothing."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))

    def train_data(self) -> TensorRows:
        generator = torch.Generator().manual_seed(0)
        return TensorRows(torch.randn(512, 64, generator=generator), torch.arange(512) % 10)

    val_data = train_data

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, label = batch
        return nn.functional.cross_entropy(model(x), label, reduction="sum"), len(x)

    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        return {"loss": (torch.zeros(()), len(batch[0]))}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model, optimizer and batch."""

    name: str
    task: str
    optimizer: str
    global_batch: int

    def build(self) -> Task:
        """Its task."""
        return Large() if self.task == "large" else load_task(self.task, {})


CASES = (
    Case(name="digits MLP, SGD", task="digits", optimizer="SGD", global_batch=64),
    Case(name="byte transformer, AdamW", task="bytes", optimizer="AdamW", global_batch=16),
    Case(name="50 MB MLP, SGD", task="large", optimizer="SGD", global_batch=64),
    Case(name="50 MB MLP, AdamW", task="large", optimizer="AdamW", global_batch=64),
)


@dataclass
class Clock:
    """Seconds of each checkpoint: those that training waits, and those that the thread works."""

    waited_s: list[float] = field(default_factory=list)
    wrote_s: list[float] = field(default_factory=list)

    def timed(self, function: Callable[..., Any], kept: list[float]) -> Callable[..., Any]:
        """`function`, whose every call adds its seconds to `kept`."""

        def call(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                kept.append(time.perf_counter() - started)

        return call


def trial(case: Case, updates: int) -> TrialSpec:
    """`case` as a trial with `EVALUATIONS` evaluations."""
    samples = updates * case.global_batch
    micro = case.global_batch // WORKERS
    return TrialSpec(
        task=TaskRef(name=case.task),
        seed=0,
        plan=BatchPlan(global_batch=case.global_batch, micro_batch=micro, accumulation=1, world_size=WORKERS),
        lr=LrPlan(base=1e-3, rule="none", peak=1e-3, reference_batch=case.global_batch),
        optimizer=OptimizerRef(name=case.optimizer),
        budget_samples=samples,
        eval_every_samples=samples // EVALUATIONS,
    )


def step_s(case: Case, group: ProcessGroup, updates: int, policy: Checkpoints | None) -> float:
    """Seconds of an update, by the loop's own clock."""
    outcome = run_trial(trial(case, updates), case.build(), group, lambda evaluation: False, checkpoints=policy)
    if outcome.status != "completed":
        raise RuntimeError(outcome.reason)
    return outcome.train_seconds / outcome.updates


def _measure(rank: int, store: str, folder: str, pairs: int, seconds: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORKERS)
    group, clock = ProcessGroup(), Clock()
    Checkpointer.save = clock.timed(Checkpointer.save, clock.waited_s)  # type: ignore[method-assign]
    Checkpointer._write = clock.timed(Checkpointer._write, clock.wrote_s)  # type: ignore[method-assign]
    for case in CASES:
        policy = Checkpoints(folder=str(Path(folder) / case.name), every_s=0.0)
        speed = group.broadcast_object(step_s(case, group, 4 * EVALUATIONS, None))
        updates = EVALUATIONS * max(1, round(seconds / speed / EVALUATIONS))
        step_s(case, group, 4 * EVALUATIONS, policy)
        clock.waited_s.clear()
        clock.wrote_s.clear()
        ratios, size = [], 0
        for _ in range(pairs):
            if rank == 0:
                shutil.rmtree(policy.folder, ignore_errors=True)
            dist.barrier()
            without = step_s(case, group, updates, None)
            ratios.append(step_s(case, group, updates, policy) / without)
            if rank == 0:
                entry = latest(policy.folder)
                size = entry.bytes if entry else 0
        if rank == 0:
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
            waited, wrote = statistics.median(clock.waited_s), statistics.median(clock.wrote_s)
            print(
                f"{case.name} ({size / 1e6:.2f} MB): an update takes {statistics.median(ratios):.3f} of its time "
                f"without ({spread}; {pairs} pairs of {updates} updates with {EVALUATIONS} checkpoints); a checkpoint "
                f"stops training for {waited:.4f} s, {100 * waited / 30:.3f} % of 30 s, and is written in {wrote:.4f} s"
            )
            sys.stdout.flush()
    dist.barrier()
    # Taking gloo's threads down under load can abort the process, and nothing is left to clean up.
    os._exit(0)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=4.0, help="of training without checkpoints, per run")
    parser.add_argument("--folder", help="where checkpoints are written: local, and removed at the end")
    arguments = parser.parse_args()
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, contextlib.suppress(KeyboardInterrupt):
        store = str(Path(folder) / "store")
        mp.spawn(_measure, args=(store, folder, arguments.pairs, arguments.seconds), nprocs=WORKERS)


if __name__ == "__main__":
    main()
