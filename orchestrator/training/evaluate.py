"""Evaluation: every validation sample exactly once over all ranks, in float64 sums and one reduction.

Batches and their order do not depend on the trial's batch, so trials with equal weights get equal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from orchestrator.training.failures import Guard, unfit
from orchestrator.training.group import Group
from orchestrator.training.memory import release
from orchestrator.training.records import Failure
from orchestrator.training.requests import evaluation_requests
from orchestrator.training.seeding import mix, seed_torch
from orchestrator.training.task import Sum

_RUNNING = ("running_mean", "running_var")


class Evaluated(NamedTuple):
    """What an evaluation gave.

    `metrics` are ``val/<name>`` of every metric with any weight, equal on all ranks; they may be non-finite. `failure`
    is this rank's own; `failed` says whether any rank has one. `due` says whether rank 0 wanted a checkpoint.
    """

    metrics: dict[str, float]
    failure: Failure | None
    failed: bool
    due: bool


class Evaluator:
    """Evaluates one trial's model again and again.

    Args:
        model: the bare model.
        evaluate: the task's ``(model, batch) -> {name: (sum, weight)}``.
        names: metrics that it returns, in an order that all ranks share.
        size: validation samples.
        batch: samples in an evaluation batch, at first: it is halved where memory does not hold it.
        load: a fresh pass over this rank's share in batches of so many samples, ready on the device.
        forward_context: autocast, or nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        evaluate: Callable[[nn.Module, Any], Mapping[str, Sum]],
        group: Group,
        *,
        names: list[str],
        size: int,
        batch: int,
        load: Callable[[int], Iterator[Any]],
        forward_context: AbstractContextManager[Any],
    ) -> None:
        self._model, self._evaluate, self._group = model, evaluate, group
        self._names, self._size, self.batch = names, size, batch
        self._load, self._context = load, forward_context
        self._running = [buffer for name, buffer in model.named_buffers() if name.rpartition(".")[2] in _RUNNING]

    def run(self, earlier: Failure | None, *, due: bool = False) -> Evaluated:
        """Evaluate on all ranks together; again in smaller batches if that is all that some of them failed for.

        Args:
            earlier: a failure of this rank that the others do not know of yet.
            due: whether this rank wants a checkpoint; told to all in the same reduction.
        """
        if self._group.world_size > 1:
            _average(self._running, self._group)
        while True:
            sums = [0.0] * (2 * len(self._names))
            guard = Guard(self._group.rank, "evaluation", earlier=earlier)
            if earlier is None:
                with guard:
                    self._add(sums)
            too_big = earlier is None and guard.failure is not None and guard.failure.out_of_memory
            codes = (float(guard.failure is not None), float(too_big), float(due))
            total = torch.tensor([*sums, *codes], dtype=torch.float64, device=self._group.device)
            self._group.all_reduce(total)
            *values, errors, too_bigs, dues = total.tolist()
            if not errors or too_bigs < errors or self.batch == 1:
                break
            release(self._group.device)
            self.batch //= 2
        failure = guard.failure
        if too_big and failure:
            failure = unfit(failure, "an evaluation batch of 1 sample")
        pairs = zip(self._names, values[::2], values[1::2], strict=True)
        metrics = {f"val/{name}": value / weight for name, value, weight in pairs if weight}
        return Evaluated(metrics, failure, errors > 0, dues > 0)

    def _add(self, sums: list[float]) -> None:
        group = self._group
        requests = evaluation_requests(self._size, self.batch, group.rank, group.world_size)
        slots = {name: 2 * i for i, name in enumerate(self._names)}
        with torch.no_grad(), _evaluating(self._model):
            for request, batch in zip(requests, self._load(self.batch), strict=True):
                seed_torch(mix(request.start), group.device)
                with self._context:
                    found = self._evaluate(self._model, batch)
                for name, (value, weight) in found.items():
                    if name not in slots:
                        raise KeyError(f"evaluate returned {name!r}, which metric_modes does not name: {self._names}")
                    if float(weight) == 0.0:
                        continue
                    sums[slots[name]] += float(value)
                    sums[slots[name] + 1] += float(weight)


def bad_metric(metrics: dict[str, float]) -> bool:
    """Whether the loss itself is not finite, which ends a trial; other metrics are merely left out then."""
    return not math.isfinite(metrics.get("val/loss", 0.0))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and each module back to the mode it had: a task may keep some of them frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _average(buffers: list[Tensor], group: Group) -> None:
    """Replace every rank's running statistics by their mean, in one float64 reduction."""
    if not buffers:
        return
    flat = torch.cat([buffer.detach().double().reshape(-1) for buffer in buffers])
    group.all_reduce(flat)
    flat /= group.world_size
    for buffer, part in zip(buffers, torch.split(flat, [buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))
