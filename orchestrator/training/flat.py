"""The `flat` reducer: all gradients are views into one buffer, and one all-reduce an update carries everything."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.training.group import Group
from orchestrator.training.reducer import SLOTS, Share, Totals

_ALIGN_BYTES = 64  # of each gradient view, so that vectorised kernels see the alignment they have without a buffer


class FlatReducer:
    """Gradients in one buffer, in the fixed order of ``model.parameters()``, with the `Totals` slots behind them.

    The order of additions is that of the buffer, so equal geometry gives equal bits, also after a resume.

    Args:
        loss: the task's ``batch -> (sum, weight)``.
        parameters: those that need a gradient; all of one dtype. They get their ``grad`` here and must keep it.
        probe: whether ranks' own norms are measured.
        micro_norms: whether each micro batch's norm is; costs a second buffer.
    """

    def __init__(
        self,
        loss: Callable[[Any], tuple[Tensor, Any]],
        parameters: list[nn.Parameter],
        group: Group,
        *,
        probe: bool,
        micro_norms: bool,
    ) -> None:
        self._loss, self._parameters, self._group = loss, parameters, group
        self._probe = probe and group.world_size > 1
        dtype, device = parameters[0].dtype, parameters[0].device
        align = max(1, _ALIGN_BYTES // parameters[0].element_size())
        offsets, end = [], 0
        for parameter in parameters:
            offsets.append(end)
            end += -(-parameter.numel() // align) * align
        # The last element receives the norm, and is not reduced.
        self._all = torch.zeros(end + SLOTS + 1, dtype=dtype, device=device)
        self._reduced = self._all[:-1]
        self._grads, self._slots, self._norm = self._all[:end], self._all[end:], self._all[-1]
        self._loss_sum, self._square, self._shares = self._slots[0], self._slots[1], self._slots[2:SLOTS]
        self._host = (
            torch.zeros(len(self._shares), dtype=dtype, pin_memory=True) if device.type == "cuda" else self._shares
        )
        self._sum = torch.zeros_like(self._grads) if micro_norms else None
        self._context = nullcontext()
        for parameter, offset in zip(parameters, offsets, strict=True):
            parameter.grad = self._grads[offset : offset + parameter.numel()].view_as(parameter)

    @cached_property
    def _host_view(self) -> Any:
        """Writing through numpy costs a tenth of building a tensor; made late, for a traced reducer has no memory."""
        return self._host.numpy()

    def settle(self) -> None:
        """Nothing to settle."""

    def buffers(self) -> list[Tensor]:
        """All that it holds on the device."""
        return [self._all] if self._sum is None else [self._all, self._sum]

    def begin(self, share: Share, scale: float) -> None:
        """Gradients and slots to zero."""
        self._scale = scale
        self._all.zero_()
        if self._sum is not None:
            self._sum.zero_()

    def micro(self, *, last: bool) -> AbstractContextManager[Any]:
        """Nothing to prepare."""
        return self._context

    def forward(self, batch: Any) -> tuple[Tensor, Any]:
        """The task's summed loss and weight."""
        return self._loss(batch)

    def backward(self, loss: Tensor) -> None:
        """Accumulate into the buffer."""
        self._loss_sum += loss.detach()
        (loss * self._scale if self._scale != 1.0 else loss).backward()  # type: ignore[no-untyped-call]

    def harvest(self, weight: float) -> float:
        """Norm of the buffer, which then moves to the sum."""
        if self._sum is None:
            return 0.0
        square = float(torch.dot(self._grads, self._grads)) / (weight * self._scale) ** 2
        self._sum += self._grads
        self._grads.zero_()
        return square

    def reduce(self, share: Share) -> Totals:
        """The one all-reduce."""
        if self._sum is not None:
            self._grads.copy_(self._sum)
        weight = share.weight
        if self._probe and weight > 0:
            torch.dot(self._grads, self._grads, out=self._square)
            self._square *= 1.0 / (weight * self._scale) ** 2
        self._host_view[:] = share.slots()
        if self._host is not self._shares:
            self._shares.copy_(self._host)
        if self._group.world_size > 1:
            self._group.all_reduce(self._reduced)
        torch.linalg.vector_norm(self._grads, out=self._norm)
        return Totals(*self._slots.tolist())

    def rescale(self, factor: float) -> None:
        """One pass over the buffer."""
        if factor != 1.0:
            self._grads *= factor

    def close(self) -> None:
        """Drop the gradients."""
        for parameter in self._parameters:
            parameter.grad = None
