"""Samples a second of the training loop over those of a bare DistributedDataParallel loop of the same model.

Both run in the same two gloo processes, in turn, so that whatever else the machine does meets both alike. A ratio of a
pair is ours over bare; printed are the median and the range over all pairs, with the noise probe off and on.

    python benchmarks/throughput.py [--pairs 61] [--seconds 0.25]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from orchestrator.config.trial import LrPlan, OptimizerRef, TaskRef, TrialSpec
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.training.group import ProcessGroup
from orchestrator.training.loop import run_trial
from orchestrator.training.registry import load_task
from orchestrator.training.stream import Stream, windows

WORKERS = 2
LR = 0.05


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model and batch."""

    name: str
    task: TaskRef
    optimizer: str
    global_batch: int


CASES = (
    Case(name="digits MLP 64-64-10, B = 64", task=TaskRef(name="digits"), optimizer="SGD", global_batch=64),
    Case(
        name="byte transformer, B = 16",
        task=TaskRef(name="bytes"),
        optimizer="AdamW",
        global_batch=16,
    ),
)


def trial(case: Case, updates: int, **changes: Any) -> TrialSpec:
    """`case` as a trial of `updates` updates, evaluated at its end."""
    samples = updates * case.global_batch
    spec = TrialSpec(
        task=case.task,
        seed=0,
        plan=BatchPlan(
            global_batch=case.global_batch,
            micro_batch=case.global_batch // WORKERS,
            accumulation=1,
            world_size=WORKERS,
        ),
        lr=LrPlan(base=LR, rule="none", peak=LR, reference_batch=case.global_batch),
        optimizer=OptimizerRef(name=case.optimizer),
        budget_samples=samples,
        eval_every_samples=samples,
    )
    return replace(spec, **changes)


def ours(case: Case, group: ProcessGroup, updates: int, **changes: Any) -> float:
    """Samples a second of our loop, by its own clock."""
    outcome = run_trial(trial(case, updates, **changes), load_task(case.task.name, case.task.options), group, _nothing)
    if outcome.status != "completed":
        raise RuntimeError(outcome.reason)
    return outcome.samples_seen / outcome.train_seconds


def bare(case: Case, group: ProcessGroup, updates: int) -> float:
    """Samples a second of what one writes by hand: DDP, a mean loss, an index into tensors in memory, a step."""
    task = load_task(case.task.name, case.task.options)
    plan = trial(case, updates).plan
    torch.manual_seed(0)
    model = DistributedDataParallel(task.model())
    optimizer = getattr(torch.optim, case.optimizer)(model.parameters(), lr=LR)
    data = task.train_data()
    stream = Stream(0, len(data))
    started = time.perf_counter()
    for start, stop in windows(plan, group.rank, 0, updates * case.global_batch):
        batch = data.fetch(stream.ids(start, stop), None)
        optimizer.zero_grad()
        loss, weight = task.loss(model, batch)
        (loss / weight).backward()
        optimizer.step()
    return updates * case.global_batch / (time.perf_counter() - started)


def _nothing(evaluation: Any) -> bool:
    return False


def _measure(rank: int, store: str, pairs: int, seconds: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORKERS)
    group = ProcessGroup()
    for case in CASES:
        speed = group.broadcast_object(min(bare(case, group, 20), bare(case, group, 50)))
        updates = max(20, round(seconds * speed / case.global_batch))
        variants = {"probe off": {"noise_probe": False}, "probe on": {"noise_probe": True}}
        variants["ddp reducer, probe off"] = {"noise_probe": False, "reducer": "ddp"}
        ratios: dict[str, list[float]] = {name: [] for name in variants}
        for changes in variants.values():
            ours(case, group, 20, **changes)
        for _ in range(pairs):
            for name, changes in variants.items():
                base = bare(case, group, updates)
                ratios[name].append(ours(case, group, updates, **changes) / base)
        if rank == 0:
            for name, found in ratios.items():
                spread = f"{min(found):.3f} to {max(found):.3f}"
                runs = f"{pairs} pairs of {updates} updates"
                print(f"{case.name}, {name}: {statistics.median(found):.3f} ({spread}; {runs})")
            sys.stdout.flush()
    dist.barrier()
    # Taking gloo's threads down under load can abort the process, and nothing is left to clean up.
    os._exit(0)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=61)
    parser.add_argument("--seconds", type=float, default=0.25, help="of the bare loop, per run")
    arguments = parser.parse_args()
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        store = str(Path(folder) / "store")
        mp.spawn(_measure, args=(store, arguments.pairs, arguments.seconds), nprocs=WORKERS)


if __name__ == "__main__":
    main()
