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
from orchestrator.training.reducer import SLOTS, Share, Totals

_WARMUPS = 2  # DDP rebuilds its buckets after the first backward, which changes the order of additions


class DdpReducer:
    """DDP that sums instead of averaging, whatever parameters a loss uses on whichever rank.

    Buckets follow the reverse order of ``model.parameters()``. They are settled before the first update by two
    backward passes without the task's code, so a resumed run adds in the order of an uninterrupted one. Building it
    is collective: DDP compares shapes and copies rank 0's parameters and buffers, unless `sync` is off.

    Args:
        loss: the task's ``batch -> (sum, weight)`` over `model`, which DDP sees as one module.
        parameters: those that need a gradient.
        probe: whether ranks' own norms are measured.
        sync: whether rank 0's parameters and buffers are copied; without it, ranks keep buffers of their own.
    """

    def __init__(
        self,
        loss: Callable[[Any], tuple[Tensor, Any]],
        model: nn.Module,
        parameters: list[nn.Parameter],
        group: Group,
        *,
        probe: bool,
        sync: bool = True,
    ) -> None:
        self._parameters, self._group = parameters, group
        self._buckets = _Buckets(probe=probe)
        self._ddp = DistributedDataParallel(
            _LossModule(model, parameters, loss),
            device_ids=[group.device] if group.device.type == "cuda" else None,
            init_sync=sync,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )
        # DDP compares annotations with its own classes, which postponed evaluation has turned into strings.
        self._ddp.register_comm_hook(self._buckets, lambda buckets, bucket: buckets.launch(bucket.buffer()))
        self._loss_sum = torch.zeros((), dtype=parameters[0].dtype, device=group.device)
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

    def begin(self, share: Share, scale: float) -> None:
        """Gradients and counts to zero."""
        self._scale = scale
        torch._foreach_zero_(self._grads)
        self._loss_sum.zero_()
        self._buckets.start(lambda: self._slots(share, scale))

    def micro(self, *, last: bool) -> AbstractContextManager[Any]:
        """Only the last micro batch of an update is summed over the ranks."""
        return nullcontext() if last else self._ddp.no_sync()

    def forward(self, batch: Any) -> tuple[Tensor, Any]:
        """The task's summed loss and weight, through DDP."""
        result: tuple[Tensor, Any] = self._ddp(batch)
        return result

    def backward(self, loss: Tensor) -> None:
        """Accumulate; on the last micro batch the hook sums each bucket when it is full."""
        self._loss_sum += loss.detach()
        (loss * self._scale if self._scale != 1.0 else loss).backward()  # type: ignore[no-untyped-call]

    def harvest(self, weight: float) -> float:
        """Micro norms are for one worker, which never uses DDP."""
        return 0.0

    def reduce(self, share: Share) -> Totals:
        """Complete this rank's bucket collectives; the last of them has carried the slots."""
        if share.failure is not None:
            self._buckets.complete_with_zeros()
        elif self._buckets.launched == 0:
            self._flush()
        norms = torch._foreach_norm(self._buckets.buffers)
        norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
        return Totals(*[*self._buckets.reduced_slots().tolist(), float(norm)])

    def _slots(self, share: Share, scale: float) -> Tensor:
        square = self._buckets.local_square()
        if square is None or share.weight == 0 or share.failure is not None:
            square = torch.zeros_like(self._loss_sum)
        else:
            square = square / (share.weight * scale) ** 2
        rest = self._loss_sum.new_tensor(share.slots())
        return torch.cat([self._loss_sum.reshape(1), square.reshape(1), rest])

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
    """The bucket collectives of one backward pass, as the hook sees them; the last one carries the slots.

    Attributes:
        settled: buffers of the buckets in their order, known after the warm-up; empty before.
        buffers: those handed to a collective in this pass.
    """

    def __init__(self, *, probe: bool) -> None:
        self._probe = probe
        self.settled: list[Tensor] = []
        self.start()

    def start(self, slots: Callable[[], Tensor] | None = None) -> None:
        """Before the backward passes of an update; `slots` gives the small numbers when the last bucket is full."""
        self._slots = slots
        self.buffers: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._carrier: Tensor | None = None
        self._work: Any = None

    @property
    def launched(self) -> int:
        """Bucket collectives that this rank has entered."""
        return len(self.buffers)

    def launch(self, buffer: Tensor) -> torch.futures.Future[Tensor]:
        """Sum a full bucket over the ranks."""
        if self._probe:
            self._squares.append(torch.dot(buffer, buffer))
        if self._slots is None or self.launched + 1 < len(self.settled):
            self.buffers.append(buffer)
            return _future(dist.all_reduce(buffer, async_op=True), lambda done: done.value()[0])
        # There may be no memory for this: only then has the rank entered the collective that others wait in.
        carrier = self._carrier = torch.cat([buffer, self._slots()])
        self.buffers.append(buffer)
        self._work = dist.all_reduce(carrier, async_op=True)
        return _future(self._work, lambda done: buffer.copy_(carrier[: buffer.numel()]))

    def local_square(self) -> Tensor | None:
        """The squared norm of this rank's own summed gradient, once its last bucket is full."""
        return torch.stack(self._squares).sum() if self._squares else None

    def complete_with_zeros(self) -> None:
        """Enter the collectives that this rank's broken backward pass did not reach.

        If it broke after the last one, the failure is told in the next update's.
        """
        for like in self.settled[self.launched :]:
            self.launch(torch.zeros_like(like)).wait()

    def reduced_slots(self) -> Tensor:
        """The slots, summed over the ranks."""
        if self._work is None or self._carrier is None:
            raise RuntimeError("DistributedDataParallel did not launch the buckets it settled on")
        self._work.wait()
        return self._carrier[-SLOTS:]


def _future(work: Any, then: Callable[[Any], Tensor]) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = work.get_future().then(then)
    return future
