"""The largest micro batch for a device of given size, from predictions alone; the answer itself is predicted too."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from orchestrator.config.trial import TrialSpec
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.theory.memory import MARGIN, MemoryModel, fit_memory
from orchestrator.theory.memory_use import MemoryUse
from orchestrator.training.memory_prediction import predict_memory
from orchestrator.training.task import Task

_FIRST = (2, 8, 32)
_ROUNDS = 8


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """What a device holds.

    Attributes:
        micro_batch: the largest that leaves the margin free, at most `cap`; 0 if not even one sample does.
        capped: whether the data end before the memory does.
        model: peak bytes by micro batch, fitted to all predictions.
        uses: every prediction that was made, by micro batch.
    """

    micro_batch: int
    capped: bool
    model: MemoryModel
    uses: dict[int, MemoryUse]


def with_micro_batch(spec: TrialSpec, micro_batch: int) -> TrialSpec:
    """`spec` with another micro batch, and the global batch that follows from it."""
    plan = spec.plan
    changed = BatchPlan(
        global_batch=micro_batch * plan.accumulation * plan.world_size,
        micro_batch=micro_batch,
        accumulation=plan.accumulation,
        world_size=plan.world_size,
    )
    return dataclasses.replace(spec, plan=changed)


def memory_ceiling(
    spec: TrialSpec,
    task: Task,
    device_bytes: float,
    *,
    cap: int,
    margin: float = MARGIN,
) -> Ceiling:
    """Predict the largest micro batch whose updates leave `margin` of a device free.

    Accumulation and world size stay those of `spec`: a gradient buffer more may belong to them. The fitted line
    proposes a micro batch, which is predicted itself, until the one proposed fits and the next one does not.

    Args:
        spec: the trial whose update is looked at.
        task: its task.
        device_bytes: memory of the device, or what of it is free.
        cap: samples that a worker has.
        margin: share of `device_bytes` left free.

    Raises:
        NotTraceable: as `predict_memory`.
        ValueError: for a margin or size out of range.
    """
    uses: dict[int, MemoryUse] = {}

    def peak(micro: int) -> float:
        if micro not in uses:
            uses[micro] = predict_memory(with_micro_batch(spec, micro), task)
        return float(uses[micro].peak_bytes)

    def fitted() -> MemoryModel:
        return fit_memory({micro: use.peak_bytes for micro, use in sorted(uses.items())})

    for micro in sorted({1, *(min(m, cap) for m in _FIRST)}) if cap > 1 else (1, 2):
        peak(micro)
    room = device_bytes * (1.0 - margin)
    model = fitted()
    asked = model.largest(device_bytes, margin=margin)
    fits, fails = 0, cap + 1
    for _ in range(_ROUNDS):
        guess = cap if asked is None else min(max(asked, fits), fails - 1)
        if guess == fits:
            guess += fails - fits > 1  # to see that one more does not fit
        if guess == fits:
            break
        if peak(guess) <= room:
            fits = guess
        else:
            fails = guess
        model = _line(uses, guess)
        asked = model.largest(device_bytes, margin=margin)
    return Ceiling(micro_batch=fits, capped=fits == cap, model=fitted(), uses=dict(sorted(uses.items())))


def _line(uses: dict[int, MemoryUse], near: int) -> MemoryModel:
    """The line through the two predictions nearest to `near`, which is one of them."""
    two = sorted(uses, key=lambda micro: abs(micro - near))[:2]
    return fit_memory({micro: uses[micro].peak_bytes for micro in two})
