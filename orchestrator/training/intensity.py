"""How much an update computes and how many bytes it moves, counted while its step is traced without memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode

from orchestrator.config.trial import TrialSpec
from orchestrator.training.task import Task
from orchestrator.training.traced_step import traced_trial


@dataclass(frozen=True, kw_only=True)
class Work:
    """One worker's work for one update.

    Attributes:
        flops: floating-point operations of matrix products, convolutions and attention, forward and backward; a
            multiplication and an addition are two. Other operations are not counted.
        moved_bytes: read and written by every operation that is not a view, as if none were fused and no cache held
            anything: an upper bound of the traffic.
    """

    flops: int
    moved_bytes: int

    @property
    def intensity(self) -> float:
        """Operations a byte, at least."""
        return self.flops / self.moved_bytes


def count_work(spec: TrialSpec, task: Task) -> Work:
    """Count the work of an update of `spec`, the second one, so that the optimizer's state is there.

    Raises:
        NotTraceable: as `predict_memory`.
    """
    traffic, flops = _Traffic(), FlopCounterMode(display=False)
    with traced_trial(spec, task) as trial:
        trial.update()
        with flops, traffic:
            trial.update()
    return Work(flops=flops.get_total_flops(), moved_bytes=traffic.moved_bytes)


class _Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            values = [v for v in tree_iter((args, kwargs, result)) if isinstance(v, Tensor)]
            self.moved_bytes += sum(v.numel() * v.element_size() for v in values)
        return result
