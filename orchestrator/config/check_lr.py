"""The learning rate: rules have what they need and are not stretched, warmup fits the budget."""

from __future__ import annotations

import math

from orchestrator.config.duration import Duration
from orchestrator.config.optimizers import is_adaptive, spelled_out
from orchestrator.config.reach import Reach
from orchestrator.config.refusal import Refusal
from orchestrator.theory import lr_rules

_NEEDS = {"power": "lr.exponent", "noise": "lr.noise_scale"}


def check_lr(reach: Reach) -> list[str]:
    """Refuse rules without their parameter or beyond their bounds, and warmups over the budget."""
    _check_warmup(reach)
    warnings = []
    for rule in reach.values("lr.rule"):
        _check_parameter(reach, rule)
        if rule == "sde":
            _check_sde(reach)
        warnings += _stretch_warnings(reach, rule)
    return warnings + _unused_parameters(reach)


def _check_warmup(reach: Reach) -> None:
    budget_samples, largest = reach.spec.budget.samples, reach.largest("batch.global")
    for value in reach.ends("lr.warmup"):
        warmup = Duration.parse(value)
        samples = warmup.samples(budget_samples=budget_samples, global_batch=largest)
        if samples > budget_samples:
            at = f" at batch {largest}" if warmup.unit == "updates" else ""
            rule = f"is {samples} samples{at}, over budget.samples, which is {budget_samples}"
            remedy = "shorten the warmup or raise budget.samples"
            raise Refusal(rule, key=reach.where("lr.warmup"), value=value, remedy=remedy)


def _check_parameter(reach: Reach, rule: str) -> None:
    needed = _NEEDS.get(rule)
    if needed and None in reach.values(needed):
        remedy = f"write {needed}, or use another rule"
        raise Refusal(f"rule {rule} needs {needed}", key=reach.where("lr.rule"), value=rule, remedy=remedy)
    for exponent in reach.ends("lr.exponent"):
        for batch, reference in _corners(reach):
            try:
                noise_scale = reach.smallest("lr.noise_scale")
                factor = lr_rules.scale(rule, reference, batch, exponent=exponent, noise_scale=noise_scale)
            except ValueError as error:
                raise Refusal.from_error(error, key=reach.where("lr.rule"), value=rule) from None
            _check_peaks(reach, rule, factor, batch)


def _check_peaks(reach: Reach, rule: str, factor: float, batch: int) -> None:
    for base in reach.ends("lr.base"):
        if not 0 < base * factor < math.inf:
            text = f"rule {rule} makes it {base * factor:g} at batch {batch}, which is no learning rate"
            raise Refusal(text, key=reach.where("lr.base"), value=base, remedy="write one that trains, such as 0.1")


def _check_sde(reach: Reach) -> None:
    kappa = reach.largest("batch.global") / reach.smallest("batch.reference")
    for name in reach.values("optimizer.name"):
        searched = {option: reach.smallest(f"optimizer.{option}") for option in ("alpha", "eps")}
        options = {**reach.spec.optimizer.options, **{k: v for k, v in searched.items() if v is not None}}
        options = spelled_out(name, options)
        try:
            lr_rules.scaled_optimizer_options("sde", options, kappa)
        except ValueError as error:
            raise Refusal.from_error(error, key=reach.where("lr.rule"), value="sde") from None


def _stretch_warnings(reach: Reach, rule: str) -> list[str]:
    adaptive = any(is_adaptive(name) for name in reach.values("optimizer.name"))
    key = reach.where("lr.rule")
    return [
        f"{key} = {rule}: {text}"
        for batch, reference in _corners(reach)
        for text in lr_rules.stretch_warning(rule, reference, batch, adaptive)
    ]


def _unused_parameters(reach: Reach) -> list[str]:
    rules = reach.values("lr.rule")
    return [
        f"{reach.where(key)}: has no effect without lr.rule {rule}"
        for rule, key in _NEEDS.items()
        if rule not in rules and any(value is not None for value in reach.values(key))
    ]


def _corners(reach: Reach) -> list[tuple[int, int]]:
    batches = (reach.smallest("batch.global"), reach.largest("batch.global"))
    references = (reach.smallest("batch.reference"), reach.largest("batch.reference"))
    return [(batch, reference) for batch in batches for reference in references]
