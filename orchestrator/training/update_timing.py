"""How long a trial's updates take on this machine, and where the time goes: data, forward, backward, sum, optimizer."""

from __future__ import annotations

import dataclasses
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from orchestrator.config.trial import TrialSpec
from orchestrator.training.group import Group
from orchestrator.training.optimizer import step
from orchestrator.training.records import Failure
from orchestrator.training.reducer import Reducer, Share, Totals
from orchestrator.training.seeding import isolated
from orchestrator.training.setup import prepare
from orchestrator.training.step import accumulate
from orchestrator.training.task import Task

PARTS = ("data", "forward", "backward", "communication", "optimizer")


@dataclass(frozen=True, kw_only=True)
class UpdateTimes:
    """One rank's timings of whole updates.

    Attributes:
        step_s: seconds of each update, in order, without those of the warm-up.
        shares: what of the time of the faster half of them, which little disturbed, went into each of `PARTS`; the rest
            is bookkeeping. With the reducer ``ddp``, communication that runs beside the backward pass counts as
            backward.
    """

    step_s: tuple[float, ...]
    shares: dict[str, float]


def time_updates(
    spec: TrialSpec,
    task: Task,
    group: Group,
    *,
    updates: int,
    warmup: int = 3,
    watch: AbstractContextManager[Any] | None = None,
) -> UpdateTimes | Failure:
    """Make `warmup` + `updates` whole updates of `spec`, on every rank of `group` together, and time the latter.

    They are the trial's own: the same data in the same order, reduced and stepped as in the loop. Nothing is evaluated.

    Args:
        spec: equal on all ranks; its budget is not looked at.
        task: built on each rank.
        updates: how many are timed, >= 1.
        warmup: how many are not: a process's first ones build caches and choose kernels.
        watch: entered where the timed ones begin, and left where they end.

    Returns:
        This rank's timings, or a failure: of building, equal on all ranks, or this rank's own of an update.
    """
    wanted = (warmup + updates) * spec.plan.global_batch
    lr = dataclasses.replace(spec.lr, warmup_samples=0, decay="none")
    spec = dataclasses.replace(spec, budget_samples=wanted, lr=lr)
    with isolated(group.device):
        parts = prepare(spec, task, group)
        if isinstance(parts, Failure):
            return parts
        clock = _Clock(group.device)
        reducer = parts.reducer = _Timed(parts.reducer, clock)
        seconds: list[float] = []
        parted: list[dict[str, float]] = []
        watching = ExitStack()
        try:
            for update in range(warmup + updates):
                if update == warmup:
                    watching.enter_context(watch or nullcontext())
                clock.spent = dict.fromkeys(PARTS, 0.0)
                begun = clock.now()
                seen = update * spec.plan.global_batch
                share = accumulate(spec, parts, group, seen, failure=None, stop=False, pause=False)
                totals = reducer.reduce(share)
                if totals.errors:
                    return share.failure or ELSEWHERE
                with clock.part("optimizer"):
                    reducer.rescale(1.0 / (totals.weight * parts.scaler.scale) if totals.weight else 0.0)
                    step(parts.optimizer, spec.lr.peak)
                clock.spent["data"] += share.wait_s
                seconds.append(clock.now() - begun)
                parted.append(clock.spent)
        finally:
            watching.close()
            parts.drop_reducer()
    timed = sorted(zip(seconds[warmup:], parted[warmup:], strict=True), key=lambda one: one[0])
    fast = timed[: (len(timed) + 1) // 2]
    whole = sum(step_s for step_s, _ in fast)
    shares = {name: sum(spent[name] for _, spent in fast) / whole for name in PARTS}
    return UpdateTimes(step_s=tuple(seconds[warmup:]), shares=shares)


ELSEWHERE = Failure(rank=0, phase="update", kind="TrialError", message="another rank failed in a timed update")


class _Clock:
    """Seconds by part; on a GPU each reading waits until its work is done."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._name, self._begun = device, "", 0.0
        self.spent = dict.fromkeys(PARTS, 0.0)

    def now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def part(self, name: str) -> _Clock:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._begun = self.now()

    def __exit__(self, *error: object) -> None:
        self.spent[self._name] += self.now() - self._begun


class _Timed:
    """A reducer whose parts are timed."""

    def __init__(self, reducer: Reducer, clock: _Clock) -> None:
        self._reducer, self._clock = reducer, clock
        self.settle, self.begin, self.harvest = reducer.settle, reducer.begin, reducer.harvest
        self.rescale, self.close = reducer.rescale, reducer.close

    def micro(self, *, last: bool) -> AbstractContextManager[Any]:
        return self._reducer.micro(last=last)

    def forward(self, batch: Any) -> tuple[Tensor, Any]:
        with self._clock.part("forward"):
            return self._reducer.forward(batch)

    def backward(self, loss: Tensor) -> None:
        with self._clock.part("backward"):
            self._reducer.backward(loss)

    def reduce(self, share: Share) -> Totals:
        with self._clock.part("communication"):
            return self._reducer.reduce(share)
