"""Tasks that go wrong on one rank, in one phase, at one place."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
import toys
from torch import nn

from orchestrator.tasks.arrays import TensorRows


class RaisesInBackward(torch.autograd.Function):
    """The identity, whose backward raises."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("backward broke")


class Broken(toys.Tokens):
    """Goes wrong in `phase` on `bad_rank`, from the `call`-th call on.

    ``early`` puts a broken backward at the model's output, before any gradient is there; ``late`` near its input, when
    DDP may have summed some buckets already; ``after`` breaks when all gradients are there.
    """

    errors: ClassVar[dict[str, Exception]] = {
        "exception": ValueError("forward broke"),
        "memory": torch.OutOfMemoryError("out of memory: tried to allocate 80 GiB"),
    }

    def __init__(self, phase: str, *, bad_rank: int = 1, call: int = 3, kind: str = "exception") -> None:
        super().__init__()
        self.phase, self.bad_rank, self.call, self.kind = phase, bad_rank, call, kind
        self.calls = 0

    def model(self) -> nn.Module:
        if self.phase == "setup" and toys.rank() == self.bad_rank:
            raise FileNotFoundError("no weights")
        return super().model()

    def train_data(self) -> TensorRows:
        data = super().train_data()
        return BrokenRows(self, *data.tensors) if self.phase == "loader" else data

    def bad(self) -> bool:
        """Whether it is time."""
        self.calls += 1
        return toys.rank() == self.bad_rank and self.calls >= self.call

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x, label, weight = batch
        if self.phase == "forward" and self.bad():
            raise self.errors[self.kind]
        if self.phase == "late" and self.bad():
            hidden = RaisesInBackward.apply(model[0](x))
            logits = model[2](model[1](hidden))
            return torch.nn.functional.cross_entropy(logits, label, reduction="sum"), weight.sum()
        loss, weight = super().loss(model, batch)
        if self.phase == "early" and self.bad():
            return RaisesInBackward.apply(loss), weight
        if self.phase == "after" and self.bad():
            loss.register_hook(lambda grad: torch.autograd.Variable._execution_engine.queue_callback(_raise))
        if self.phase == "nan" and self.bad():
            return loss * float("nan"), weight
        if self.phase == "infinite gradient" and self.bad():
            return loss + 0 * (model[0].weight.sum() * 0).sqrt(), weight
        if self.phase == "vector" and self.bad():
            return loss.reshape(1), weight
        return loss, weight

    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        if self.phase == "evaluation" and toys.rank() == self.bad_rank:
            raise ZeroDivisionError("evaluation broke")
        return {"loss": super().loss(model, batch)}


def _raise() -> None:
    raise RuntimeError("backward broke")


class BrokenRows(TensorRows):
    """Rows that cannot be read in the end."""

    def __init__(self, task: Broken, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.task = task

    def fetch(self, indices: np.ndarray[Any, Any], draws: Any) -> Any:
        if draws is not None and self.task.bad():
            raise OSError("disk broke")
        return super().fetch(indices, draws)


class Silent(toys.Tokens):
    """No weight at all on the given ranks, where the loss is 0/0."""

    def __init__(self, *ranks: int, micro: int | None = None) -> None:
        super().__init__()
        self.ranks, self.micro, self.calls = ranks, micro, 0

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x, label, weight = batch
        self.calls += 1
        silent = toys.rank() in self.ranks and (self.micro is None or self.calls % 2 == self.micro)
        weight = torch.zeros_like(weight) if silent else torch.ones_like(weight)
        losses = torch.nn.functional.cross_entropy(model(x), label, reduction="none")
        mean = (losses * weight).sum() / weight.sum()
        return mean * weight.sum(), weight.sum()

    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        return {"loss": toys.Samples().loss(model, batch)}
