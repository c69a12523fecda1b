"""One rank's try of a micro batch: whole updates and an evaluation with the largest samples, and the peak of memory."""

from __future__ import annotations

import dataclasses
import math
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch import nn

from orchestrator.config.trial import LoaderSpec, TrialSpec
from orchestrator.theory.batch_finder import Order, Sight
from orchestrator.training.failures import Guard, describe
from orchestrator.training.group import Group
from orchestrator.training.memory import peak_bytes, reset_peak
from orchestrator.training.optimizer import step
from orchestrator.training.parts import Parts
from orchestrator.training.records import Failure
from orchestrator.training.reducer import Share
from orchestrator.training.sample_sizes import LargestData, find_largest
from orchestrator.training.seeding import isolated
from orchestrator.training.setup import prepare
from orchestrator.training.step import accumulate
from orchestrator.training.task import Sum, Task


def try_batch(spec: TrialSpec, task: Task, group: Group, order: Order, *, room_bytes: float) -> Sight:
    """Make the updates and the evaluation of `order` on every rank of `group` together.

    The device, or on a CPU this process, is kept from taking more than `room_bytes`, as far as the system can.

    Args:
        spec: the trial; its plan is that of the order's micro batch, its budget is not looked at.
        task: built on each rank.
        order: equal on all ranks.
        room_bytes: that this rank may hold: of a device beside what it holds already, of a CPU process altogether.

    Returns:
        What this rank saw. A rank on which all went well says so also where another's did not.
    """
    worst = Worst(task, eval_rows=order.eval_batch * group.world_size)
    short = dataclasses.replace(
        spec,
        budget_samples=max(1, order.updates) * spec.plan.global_batch,
        eval_batch=order.eval_batch,
        lr=dataclasses.replace(spec.lr, warmup_samples=0, decay="none"),
        loader=LoaderSpec(),  # what loader processes hold is theirs
    )
    with isolated(group.device), limited(group.device, room_bytes):
        reset_peak(group.device)
        parts = prepare(short, worst, group)
        if isinstance(parts, Failure):
            return _seen(parts, worst, group, room_bytes)
        try:
            failure, agreed = _updates(short, parts, group, order)
            if not agreed:
                failure = _evaluation(parts, order, failure)
            return _seen(failure, worst, group, room_bytes)
        finally:
            parts.drop_reducer()


def _updates(spec: TrialSpec, parts: Parts, group: Group, order: Order) -> tuple[Failure | None, bool]:
    """Whole updates, or none but for the optimizer's state: this rank's failure, and whether all know that one failed.

    Of the weights nothing is asked: the learning rate is 0.
    """
    failure: Failure | None = None
    for update in range(order.updates):
        seen = update * spec.plan.global_batch
        share = accumulate(spec, parts, group, seen, failure=failure, stop=False, pause=False)
        totals = parts.reducer.reduce(share)
        if totals.errors:
            return share.failure, True
        with Guard(group.rank, "update") as guard:
            if not totals.weight:
                raise ValueError("the largest samples have no weight, so that no gradient can be tried with them")
            if math.isfinite(totals.grad_norm):
                parts.reducer.rescale(1.0 / (totals.weight * parts.scaler.scale))
            else:
                parts.reducer.begin(Share(micro_norms=[]), 1.0)
            step(parts.optimizer, 0.0)
        failure = guard.failure
    if not order.updates:
        with Guard(group.rank, "update") as guard:
            parts.reducer.begin(Share(micro_norms=[]), 1.0)
            step(parts.optimizer, 0.0)
        failure = guard.failure
    return failure, False


def _evaluation(parts: Parts, order: Order, earlier: Failure | None) -> Failure | None:
    found = parts.evaluator.run(earlier)
    if found.failure is None and parts.evaluator.batch < order.eval_batch:
        message = f"an evaluation batch of {order.eval_batch} samples does not fit in memory on some rank"
        return Failure(rank=0, phase="evaluation", kind="OutOfMemory", message=message, out_of_memory=True)
    return found.failure


def _seen(failure: Failure | None, worst: Worst, group: Group, room_bytes: float) -> Sight:
    peak = peak_bytes(group.device)
    message = describe(failure) if failure else ""
    out_of_memory = failure is not None and failure.out_of_memory
    if failure is None and group.device.type == "cpu" and peak > room_bytes:
        message = f"the process held {peak:,} bytes, of {room_bytes:,.0f} that it may"
        out_of_memory = True
    return Sight(
        fits=not message,
        out_of_memory=out_of_memory,
        evaluating=failure is not None and failure.phase == "evaluation",
        message=message,
        rows=worst.rows or None,
        peak_bytes=peak,
    )


class Worst(Task):
    """`task` whose samples are all as large as its largest, with so many rows to evaluate.

    Attributes:
        rows: samples of the first training batch that was loaded; 0 before.
    """

    def __init__(self, task: Task, *, eval_rows: int) -> None:
        train, val = task.train_data(), task.val_data()
        self.config, self.metric_modes = task.config, task.metric_modes  # type: ignore[misc]
        self.rows = 0
        self._task = task
        self._train = LargestData(train, find_largest(train).alike, self._told)
        self._val = _Rows(LargestData(val, find_largest(val).alike, lambda rows: None), eval_rows)

    def model(self) -> nn.Module:
        """The task's."""
        return self._task.model()

    def train_data(self) -> LargestData:
        """As many samples as the task has."""
        return self._train

    def val_data(self) -> Any:
        """The rows to evaluate."""
        return self._val

    def loss(self, model: nn.Module, batch: Any) -> Sum:
        """The task's."""
        return self._task.loss(model, batch)

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Sum]:
        """The task's."""
        return self._task.evaluate(model, batch)

    def _told(self, rows: int) -> None:
        self.rows = self.rows or rows


class _Rows:
    """`data` with so many rows."""

    def __init__(self, data: LargestData, rows: int) -> None:
        self._rows, self.fetch = rows, data.fetch

    def __len__(self) -> int:
        return self._rows


@contextmanager
def limited(device: torch.device, room_bytes: float) -> Iterator[None]:
    """Let allocations fail that would go beyond `room_bytes`."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, room_bytes / total), device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
        return
    held = psutil.Process().memory_info()
    data = getattr(held, "data", 0)  # private writable memory, which is what can be limited; Linux only
    if not data:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = max(int(data + room_bytes - held.rss), data)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if soft == resource.RLIM_INFINITY else min(wanted, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
