"""The number formats of a trial: dtype of its parameters, autocast of its forward pass, and fp16's loss scale."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from orchestrator.config.trial import LossScale, Precision

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_dtype(model: nn.Module, precision: Precision) -> nn.Module:
    """`model` with parameters and floating buffers in float64 for ``fp64``, in float32 otherwise."""
    return model.double() if precision == "fp64" else model.float()


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """The context of every forward pass; it may be entered again and again."""
    dtype = _AUTOCAST.get(precision)
    if dtype is None:
        return nullcontext()
    return torch.autocast(device.type, dtype)


class Scaler:
    """The factor on the loss that keeps small fp16 gradients from vanishing; 1 in every other precision.

    It halves when a gradient overflows and doubles after `growth_interval` updates without one. Source: Micikevicius
    et al. 2018, "Mixed Precision Training", section 3.2 (https://arxiv.org/abs/1710.03740).
    """

    def __init__(self, precision: Precision, spec: LossScale) -> None:
        self.dynamic = precision == "fp16"
        self.scale = float(spec.initial) if self.dynamic else 1.0
        self._growth_interval = spec.growth_interval
        self._good_updates = 0

    @property
    def collapsed(self) -> bool:
        """Whether even unscaled gradients overflow, so that no scale can help."""
        return self.scale < 1.0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"scale": self.scale, "good_updates": self._good_updates}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.scale, self._good_updates = state["scale"], state["good_updates"]

    def overflowed(self) -> None:
        """An update was skipped because its gradient is not finite."""
        self.scale /= 2.0
        self._good_updates = 0

    def succeeded(self) -> None:
        """An update went through."""
        if not self.dynamic:
            return
        self._good_updates += 1
        if self._good_updates == self._growth_interval:
            self.scale *= 2.0
            self._good_updates = 0
