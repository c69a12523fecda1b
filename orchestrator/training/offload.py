"""An optimizer in host memory: gradients are copied there before its step, and parameters back after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def offloaded(
    parameters: list[nn.Parameter], build: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> torch.optim.Optimizer:
    """An optimizer whose state, and a copy of the parameters that it steps, are in host memory.

    It is used like any other: ``step()`` takes the gradients that `parameters` then have, and leaves its result in
    them. Its state dict is that of an optimizer without offloading, and each may load the other's. On a CPU the bits
    are those without; a GPU's kernels round otherwise than its host's. Host memory is page-locked beside a GPU.

    Parameters that something else has changed since the last step are noticed by torch's version counter, which does
    not count changes through ``.data``.

    Args:
        parameters: on the device; every one has a gradient at each step.
        build: makes the optimizer over the parameters that it is given.

    Source: Ren et al. 2021, "ZeRO-Offload" (https://arxiv.org/abs/2101.06840), without its overlap of step and copies.
    """
    mirror = _Mirror(parameters)
    optimizer = build(mirror.masters)
    optimizer.register_step_pre_hook(mirror.fetch)
    optimizer.register_step_post_hook(mirror.put_back)
    return optimizer


class _Mirror:
    """Parameters on a device and their masters on its host."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self.masters = [nn.Parameter(_host_like(parameter)) for parameter in parameters]
        # Of the parameters as they were put back: none yet, for a checkpoint or rank 0 may still replace them.
        self._versions: list[int] = []

    @torch.no_grad()
    def fetch(self, *_: Any) -> None:
        """Gradients to the host, and parameters where they are not what was put back."""
        pairs = list(zip(self.masters, self._parameters, strict=True))
        if self._versions != self._current():
            for master, parameter in pairs:
                master.copy_(parameter, non_blocking=True)
        for master, parameter in pairs:
            assert parameter.grad is not None
            if master.grad is None:
                master.grad = _host_like(parameter.grad)
            # Copies of a stream keep their order, so one that is waited for ends the wait for all.
            master.grad.copy_(parameter.grad, non_blocking=parameter is not self._parameters[-1])

    @torch.no_grad()
    def put_back(self, *_: Any) -> None:
        """Parameters to the device; the next pass, or the next `fetch`, comes after them in its stream."""
        for master, parameter in zip(self.masters, self._parameters, strict=True):
            parameter.copy_(master, non_blocking=True)
        self._versions = self._current()

    def _current(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]


def _host_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type == "cuda", requires_grad=False)
