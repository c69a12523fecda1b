"""The learning rate of an update from the trial's spec alone, and what no spec may ask of the loop."""

from __future__ import annotations

import math
from typing import get_args

from orchestrator.config.trial import Precision, Reducer, TrialSpec
from orchestrator.theory.schedules import lr_factor


def learning_rate(spec: TrialSpec, samples_seen: int) -> float:
    """The LR of the update that starts at `samples_seen`, from the spec alone."""
    plan = spec.lr
    return plan.peak * lr_factor(
        samples_seen,
        spec.plan.global_batch,
        budget_samples=spec.budget_samples,
        warmup_samples=plan.warmup_samples,
        decay=plan.decay,
        final=plan.final,
    )


def check_trial(spec: TrialSpec, world_size: int) -> None:
    """Refuse a spec that the loop cannot follow to its end.

    A sweep's specs were checked when they were resolved. One that comes from elsewhere must still end as a failed
    trial: an error in the middle of the loop would take the gang with it.

    Raises:
        ValueError: names the field and its value.
    """
    if spec.plan.world_size != world_size:
        raise ValueError(f"the plan wants {spec.plan.world_size} workers, and the gang has {world_size}")
    for name in ("budget_samples", "eval_every_samples", "eval_batch"):
        if getattr(spec, name) < 1:
            raise ValueError(f"{name} = {getattr(spec, name)!r}: must be at least 1")
    if spec.budget_samples <= spec.begins_at:
        raise ValueError(f"budget_samples = {spec.budget_samples!r}: the branch begins at {spec.begins_at}")
    if any(mark < 1 or (mark - spec.begins_at) % spec.plan.global_batch for mark in spec.keep_at):
        raise ValueError(f"keep_at = {spec.keep_at!r}: must be multiples of the global batch")
    if not 0 <= spec.eval_growth <= 1:
        raise ValueError(f"eval_growth = {spec.eval_growth!r}: must be from 0 to 1")
    for name, known in (("precision", get_args(Precision)), ("reducer", get_args(Reducer))):
        if getattr(spec, name) not in known:
            raise ValueError(f"{name} = {getattr(spec, name)!r}: must be one of {', '.join(known)}")
    positive = {
        "grad_clip": spec.grad_clip,
        "loss_scale.initial": spec.loss_scale.initial,
        "loss_scale.growth_interval": spec.loss_scale.growth_interval,
    }
    for name, value in positive.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} = {value!r}: must be positive and finite")
    if not 0 <= spec.lr.peak < math.inf:
        raise ValueError(f"lr.peak = {spec.lr.peak!r}: must be finite and at least 0")
    learning_rate(spec, 0)  # which refuses a warmup over the budget, and an unknown decay
