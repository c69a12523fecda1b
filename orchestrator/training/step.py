"""One rank's work for one update before the reduction: load, forward, backward, for each micro batch."""

from __future__ import annotations

import math
import time
from typing import Any

from torch import Tensor

from orchestrator.config.trial import TrialSpec
from orchestrator.training.failures import Guard
from orchestrator.training.group import Group
from orchestrator.training.parts import Parts
from orchestrator.training.records import Failure
from orchestrator.training.reducer import Share
from orchestrator.training.seeding import mix, seed_torch


def accumulate(
    spec: TrialSpec,
    parts: Parts,
    group: Group,
    samples_seen: int,
    *,
    failure: Failure | None,
    stop: bool,
    pause: bool,
) -> Share:
    """Add up the gradients of this rank's micro batches.

    Args:
        samples_seen: at the start of the update.
        failure: of this rank, from before; then nothing is computed.
        stop: whether this rank asks the trial to end before this update.
        pause: whether it asks the trial to end after it.

    Returns:
        The rank's share. An exception of the data or the task is caught and becomes its failure.
    """
    reducer = parts.reducer
    share = Share(failure=failure, stop=stop, pause=pause, micro_norms=[])
    reducer.begin(share, parts.scaler.scale)
    if failure:
        return share
    guard = Guard(group.rank, "loader")
    with guard:
        for micro in range(spec.plan.accumulation):
            guard.phase, asked = "loader", time.perf_counter()
            batch = next(parts.batches)
            share.wait_s += time.perf_counter() - asked
            # Dropout and the like: a function of where we are, so that no generator's state has to be saved.
            seed_torch(mix(spec.seed, samples_seen, group.rank, micro), group.device)
            with reducer.micro(last=micro == spec.plan.accumulation - 1):
                guard.phase = "forward"
                with parts.context:
                    loss, weight = _checked(*reducer.forward(batch))
                if weight == 0:
                    continue  # such a loss may be 0/0, whose gradient would spoil the others'
                guard.phase = "backward"
                share.weight += weight
                reducer.backward(loss)
            if parts.probe.micro_norms:
                share.micro_norms.append((reducer.harvest(weight), weight))
    share.failure = guard.failure
    return share


def _checked(loss: Any, weight: Any) -> tuple[Tensor, float]:
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise TypeError(f"loss must return the batch's summed loss as a scalar tensor, not {found}")
    number = float(weight)
    if not 0 <= number < math.inf:
        raise ValueError(f"loss returned the weight {number}: it must be finite and at least 0")
    return loss, number
