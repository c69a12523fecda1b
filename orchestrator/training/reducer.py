"""The port between the loop and the way gradients are summed over workers.

A reducer owns the gradients of one trial. Both kinds (`flat`, `ddp`) follow the same steps, so the loop knows neither.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from orchestrator.training.records import Failure


@dataclass(kw_only=True, slots=True)
class Share:
    """What one rank brings to an update beside its gradients.

    Attributes:
        weight: its samples' or tokens' weight.
        failure: what went wrong on this rank, if anything did; its gradients then count for nothing.
        stop: whether this rank asks the trial to end before this update.
        pause: whether it asks the trial to end after it, so that it can be gone on with.
        micro_norms: squared norm of each micro batch's gradient sum over its weight squared, with that weight; only
            where the noise probe works on micro batches.
        wait_s: seconds spent waiting for data.
    """

    weight: float = 0.0
    failure: Failure | None = None
    stop: bool = False
    pause: bool = False
    micro_norms: list[tuple[float, float]]
    wait_s: float = 0.0

    def slots(self) -> tuple[float, ...]:
        """What the rank itself adds to `Totals`, from ``weight`` to ``pauses``."""
        inverse, counted = (1.0 / self.weight, 1.0) if self.weight > 0 else (0.0, 0.0)
        failed, too_big = (1.0, float(_too_big(self.failure))) if self.failure else (0.0, 0.0)
        return self.weight, inverse, counted, failed, too_big, float(self.stop), float(self.pause)


def _too_big(failure: Failure) -> bool:
    """Whether a smaller micro batch may help. An optimizer that ran out of memory may have changed the weights."""
    return failure.out_of_memory and failure.phase in ("loader", "forward", "backward")


class Totals(NamedTuple):
    """One update's sums over all ranks, equal on every rank.

    `grad_norm` is that of the summed, still scaled gradient. `square_sum` adds the squared norms of the ranks' own mean
    gradients, `inverse_sum` the inverses of their weights; `counted` ranks had any weight. `errors` ranks failed, and
    `too_big` of them for want of memory for their micro batch.
    """

    loss: float
    square_sum: float
    weight: float
    inverse_sum: float
    counted: float
    errors: float
    too_big: float
    stops: float
    pauses: float
    grad_norm: float


SLOTS = len(Totals._fields) - 1  # the norm is measured after the reduction


class Reducer(Protocol):
    """Sums gradients, losses and weights over the ranks of a trial, once an update.

    The order is ``begin``, then for each micro batch ``micro(last)`` around ``forward`` and ``backward``, then
    ``reduce``, then ``rescale``. ``reduce`` is collective and must be called on every rank, also after an exception.
    """

    def settle(self) -> None:
        """Once, before the first update: whatever collectives the reducer itself needs. Cannot fail on one rank."""

    def begin(self, share: Share, scale: float) -> None:
        """Start an update: gradients to zero. `share` is filled while the update goes on; `scale` is the loss scale."""

    def micro(self, *, last: bool) -> AbstractContextManager[Any]:
        """Context of one micro batch's forward and backward pass."""

    def forward(self, batch: Any) -> tuple[Tensor, Any]:
        """The task's summed loss and weight."""

    def backward(self, loss: Tensor) -> None:
        """Add `loss` to the update's, and its scaled gradient to the gradients; its weight must be in the share."""

    def harvest(self, weight: float) -> float:
        """The squared norm of the mean gradient of the micro batch just done; 0 where micro norms are not kept."""

    def reduce(self, share: Share) -> Totals:
        """Sum everything over the ranks."""

    def rescale(self, factor: float) -> None:
        """Multiply the summed gradients by `factor`: average, unscaling and clipping in one pass."""

    def close(self) -> None:
        """Let go of the model."""
