"""A spec and one suggestion, made into a trial: rules applied, durations in samples, the batch split. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.config.duration import Duration
from orchestrator.config.fields import plain_duration
from orchestrator.config.keys import check_searchable
from orchestrator.config.load import spec_from_dict
from orchestrator.config.optimizers import spelled_out
from orchestrator.config.refusal import Refusal
from orchestrator.config.spec import SweepSpec
from orchestrator.config.trial import (
    LoaderSpec,
    LossScale,
    LrPlan,
    Mode,
    OptimizerRef,
    Target,
    TaskRef,
    TrialSpec,
)
from orchestrator.errors import ConfigError
from orchestrator.theory import batch_plan, lr_rules


def resolve_trial(
    spec: SweepSpec,
    params: Mapping[str, Any],
    *,
    seed: int | None = None,
    metric_modes: Mapping[str, Mode] | None = None,
) -> TrialSpec:
    """The trial that `spec` describes when `params` are laid over it.

    Args:
        spec: the sweep.
        params: dotted key -> value as it stands in YAML (durations as text, such as "5%"); keys that a space may name.
        seed: of the trial; the spec's unless given.
        metric_modes: the task's metrics, without ``val/``, and their direction; needed where a target is set.

    Raises:
        ConfigError: a key or value that the spec would not take, or a combination that cannot be trained.
        ValueError: if a target is set and `metric_modes` do not tell its direction.
    """
    spec = with_params(spec, params)
    batch, training, on_gpu = spec.batch, spec.training, spec.cluster.gpus_per_worker > 0
    try:
        plan = batch_plan.plan(
            batch.global_batch,
            spec.cluster.workers,
            micro_batch=batch.fixed_micro,
            accumulation=batch.accumulation,
            micro_batch_max=batch.micro_batch_max,
        )
    except batch_plan.InfeasiblePlan as error:
        raise ConfigError(
            error.rule, key="batch.global", value=batch.global_batch, remedy=feasible_remedy(error)
        ) from None
    reducer = ("ddp" if on_gpu else "flat") if training.reducer == "auto" else training.reducer
    loader = training.loader
    return TrialSpec(
        task=TaskRef(name=spec.task.name, options=spec.task.options),
        seed=spec.seed if seed is None else seed,
        plan=plan,
        lr=_lr_plan(spec),
        optimizer=OptimizerRef(name=spec.optimizer.name, options=_optimizer_options(spec)),
        budget_samples=spec.budget.samples,
        eval_every_samples=spec.budget.eval_every_samples,
        eval_batch=spec.evaluation.batch,
        target=_target(spec, metric_modes),
        stop_at_target=spec.objective.kind != "best_metric",
        precision=training.precision,
        loss_scale=LossScale(initial=training.loss_scale.initial, growth_interval=training.loss_scale.growth_interval),
        grad_clip=training.grad_clip,
        noise_probe=training.noise_probe,
        reducer=reducer,
        checkpoint_activations=training.checkpoint_activations,
        offload_optimizer=training.offload_optimizer,
        loader=LoaderSpec(
            workers=loader.workers,
            prefetch=loader.prefetch,
            pin_memory=on_gpu if loader.pin_memory == "auto" else loader.pin_memory,
        ),
    )


def with_params(spec: SweepSpec, params: Mapping[str, Any]) -> SweepSpec:
    """The spec with `params` (dotted key -> value as in YAML) written into it and an empty space.

    Raises:
        ConfigError: for a key that a space may not name, or a value that the key may not have.
    """
    raw = {**spec.to_dict(), "space": {}}
    for key, value in params.items():
        try:
            check_searchable(key)
        except Refusal as refusal:
            raise refusal.under(key).in_file(None) from None
        *path, name = key.split(".")
        section: dict[str, Any] = raw
        for part in path:
            section = section[part]
        section[name] = plain_duration(value) if isinstance(value, Duration) else value
    return spec_from_dict(raw)


def feasible_remedy(error: batch_plan.InfeasiblePlan) -> str:
    """The remedy for a batch that cannot be split: the nearest ones that can."""
    if error.nearest:
        return f"nearest feasible: {'; '.join(map(str, error.nearest))}"
    return "change batch.micro, batch.micro_max, batch.accumulation or cluster.workers"


def _lr_plan(spec: SweepSpec) -> LrPlan:
    lr, batch = spec.lr, spec.batch
    try:
        peak = lr_rules.peak_lr(
            lr.base,
            lr.rule,
            batch.reference_batch,
            batch.global_batch,
            exponent=lr.exponent,
            noise_scale=lr.noise_scale,
        )
    except ValueError as error:
        raise Refusal.from_error(error, key="lr.rule", value=lr.rule).in_file(None) from None
    warmup_samples = lr.warmup.samples(budget_samples=spec.budget.samples, global_batch=batch.global_batch)
    if warmup_samples > spec.budget.samples:
        rule = f"is {warmup_samples} samples at batch {batch.global_batch}, over the budget of {spec.budget.samples}"
        raise ConfigError(rule, key="lr.warmup", value=str(lr.warmup), remedy="shorten it")
    return LrPlan(
        base=lr.base,
        rule=lr.rule,
        peak=peak,
        reference_batch=batch.reference_batch,
        warmup_samples=warmup_samples,
        decay=lr.decay,
        final=float(lr.final.value),
        exponent=lr.exponent,
        noise_scale=lr.noise_scale,
    )


def _optimizer_options(spec: SweepSpec) -> dict[str, Any]:
    options = spec.optimizer.options
    if spec.lr.rule != "sde":
        return options
    kappa = spec.batch.global_batch / spec.batch.reference_batch
    try:
        return lr_rules.scaled_optimizer_options("sde", spelled_out(spec.optimizer.name, options), kappa)
    except ValueError as error:
        raise Refusal.from_error(error, key="lr.rule", value="sde").in_file(None) from None


def _target(spec: SweepSpec, metric_modes: Mapping[str, Mode] | None) -> Target | None:
    objective = spec.objective
    if objective.target is None:
        if objective.kind != "best_metric":
            rule, remedy = f"objective {objective.kind} needs a target", "write the value that counts as trained"
            raise ConfigError(rule, key="objective.target", value=None, remedy=remedy)
        return None
    name = objective.metric.removeprefix("val/")
    if metric_modes is None or name not in metric_modes:
        raise ValueError(f"metric_modes = {metric_modes!r}: must tell the direction of {name!r}, which has a target")
    return Target(metric=objective.metric, value=objective.target, mode=metric_modes[name])
