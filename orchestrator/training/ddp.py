"""The `ddp` reducer: torch's DistributedDataParallel, which sums gradients while backward still runs.

A rank that fails must not leave the others waiting inside DDP's collectives. All of them go through a communication
hook that counts them, so a failed rank can complete the ones it still owes with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.training.group import Group
from orchestrator.training.reducer import Share, Totals

_WARMUPS = 2  # DDP rebuilds its buckets after the first backward, which changes the order of additions


class DdpReducer:
    """DDP that sums instead of averaging, whatever parameters a loss uses on whichever rank.

    Buckets follow the reverse order of ``model.parameters()``. They are settled before the first update by two
    backward passes without the task's code, so a resumed run adds in the order of an uninterrupted one. Building it
    is collective: DDP compares shapes and copies rank 0's parameters and buffers.

    Args:
        loss: the task's ``batch -> (sum, weight)`` over `model`, which DDP sees as one module.
        parameters: those that need a gradient.
        probe: whether ranks' own norms are measured.
    """

    def __init__(
        self,
        loss: Callable[[Any], tuple[Tensor, Any]],
        model: nn.Module,
        parameters: list[nn.Parameter],
        group: Group,
        *,
        probe: bool,
    ) -> None:
        self._parameters, self._group = parameters, group
        self._buckets = _Buckets(probe=probe)
        self._ddp = DistributedDataParallel(
            _LossModule(model, parameters, loss),
            device_ids=[group.device] if group.device.type == "cuda" else None,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )
        # DDP compares annotations with its own classes, which postponed evaluation has turned into strings.
        self._ddp.register_comm_hook(self._buckets, lambda state, bucket: _sum_bucket(state, bucket))
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=group.device)
        self._grads: list[Tensor] = []

    def settle(self) -> None:
        """Settle the buckets; collective, and free of the task's code."""
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        for _ in range(_WARMUPS):
            self._buckets.start()
            self._flush()
        self._buckets.settled = self._buckets.buffers
        self._grads = [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def begin(self) -> None:
        """Gradients and counts to zero."""
        torch._foreach_zero_(self._grads)
        self._loss_sum.zero_()
        self._buckets.start()

    def micro(self, *, last: bool) -> AbstractContextManager[Any]:
        """Only the last micro batch of an update is summed over the ranks."""
        return nullcontext() if last else self._ddp.no_sync()

    def forward(self, batch: Any) -> tuple[Tensor, Any]:
        """The task's summed loss and weight, through DDP."""
        result: tuple[Tensor, Any] = self._ddp(batch)
        return result

    def backward(self, loss: Tensor, scale: float) -> None:
        """Accumulate; on the last micro batch the hook sums each bucket when it is full."""
        self._loss_sum += loss.detach()
        (loss * scale if scale != 1.0 else loss).backward()  # type: ignore[no-untyped-call]

    def harvest(self, weight: float, scale: float) -> float:
        """Micro norms are for one worker, which never uses DDP."""
        return 0.0

    def reduce(self, share: Share, scale: float) -> Totals:
        """Complete this rank's bucket collectives, then sum the small numbers."""
        if share.failure is not None:
            self._buckets.complete_with_zeros(self._group)
        elif self._buckets.launched == 0:
            self._flush()
        square = 0.0
        if share.weight > 0 and share.failure is None:
            square = self._buckets.local_square() / (share.weight * scale) ** 2
        rest = torch.tensor((square, *share.slots()), dtype=torch.float64).to(self._group.device)
        control = torch.cat([self._loss_sum.reshape(1), rest])
        self._group.all_reduce(control)
        norms = torch._foreach_norm(self._buckets.buffers)
        norm = torch.linalg.vector_norm(torch.stack(norms)).double().reshape(1)
        return Totals(*torch.cat([control, norm]).tolist())

    def rescale(self, factor: float) -> None:
        """One pass over the buckets' views."""
        if factor != 1.0:
            torch._foreach_mul_(self._grads, factor)

    def close(self) -> None:
        """Drop the gradients and DDP."""
        self._buckets = _Buckets(probe=False)
        self._grads = []
        for parameter in self._parameters:
            parameter.grad = None
        del self._ddp

    def _flush(self) -> None:
        loss, _ = self._ddp(_NO_BATCH)
        loss.backward()


_NO_BATCH = object()


class _LossModule(nn.Module):
    """The loss as a module, so that a task may call the model as often as it likes, and read its attributes."""

    def __init__(
        self, model: nn.Module, parameters: list[nn.Parameter], loss: Callable[[Any], tuple[Tensor, Any]]
    ) -> None:
        super().__init__()
        self.model = model
        self._needed, self._loss = parameters, loss

    def forward(self, batch: Any) -> tuple[Tensor, Any]:
        if batch is _NO_BATCH:
            loss = torch.zeros((), device=self._needed[0].device)
            for parameter in self._needed:
                loss = _Touch.apply(loss, parameter)  # type: ignore[no-untyped-call]
            return loss, 0.0
        loss, weight = self._loss(batch)
        # DDP waits for every parameter, and a loss may use only some, on this rank alone.
        return _Touch.apply(loss, *self._needed), weight  # type: ignore[no-untyped-call]


class _Touch(torch.autograd.Function):
    """The identity on its first argument; the others get no gradient but are reported to DDP as done."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *parameters: Tensor) -> Tensor:
        ctx.others = len(parameters)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], *(None,) * ctx.others


class _Buckets:
    """The bucket collectives of one backward pass, as the hook sees them."""

    def __init__(self, *, probe: bool) -> None:
        self._probe = probe
        self.settled: list[Tensor] = []
        self.buffers: list[Tensor] = []
        self._squares: list[Tensor] = []
        self.launched = 0

    def start(self) -> None:
        """Before a backward pass."""
        self.buffers, self._squares, self.launched = [], [], 0

    def add(self, buffer: Tensor) -> None:
        """A bucket is full and about to be summed."""
        if self._probe:
            self._squares.append(torch.dot(buffer, buffer))
        self.buffers.append(buffer)
        self.launched += 1

    def local_square(self) -> float:
        """The squared norm of this rank's own summed gradient."""
        return float(torch.stack(self._squares).sum()) if self._squares else 0.0

    def complete_with_zeros(self, group: Group) -> None:
        """Take part in the collectives that this rank's broken backward pass did not reach."""
        for like in self.settled[self.launched :]:
            buffer = torch.zeros_like(like)
            group.all_reduce(buffer)
            self.buffers.append(buffer)
        self.launched = len(self.settled)


def _sum_bucket(state: _Buckets, bucket: Any) -> torch.futures.Future[Tensor]:
    buffer = bucket.buffer()
    state.add(buffer)
    work = dist.all_reduce(buffer, async_op=True)
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future
