"""Batches, budget and evaluation interval: every reachable batch can be split, fits the data, and fits the budget."""

from __future__ import annotations

import itertools

from orchestrator.config.facts import Facts
from orchestrator.config.reach import Reach
from orchestrator.config.refusal import Refusal
from orchestrator.config.resolve import feasible_remedy
from orchestrator.config.training_sections import AUTO
from orchestrator.theory import batch_plan

_MOST_BATCHES = 10_000  # enumerated one by one, which takes a second or so
_LARGE_SHARE = 10


def check_batch(reach: Reach, facts: Facts) -> list[str]:
    """Refuse batches over the training set or the budget, infeasible splits, and intervals over the budget."""
    spec = reach.spec
    largest, key = reach.largest("batch.global"), reach.where("batch.global")
    if largest > facts.train_samples:
        rule = f"must be at most the {facts.train_samples} training samples"
        raise Refusal(rule, key=key, value=largest, remedy=f"write {facts.train_samples} or less")
    if largest > spec.budget.samples:
        rule = f"must be at most budget.samples, which is {spec.budget.samples}"
        raise Refusal(rule, key=key, value=largest, remedy="raise budget.samples or lower the batch")
    _check_auto(reach)
    _check_splits(reach)
    _check_interval(reach)
    if largest * _LARGE_SHARE > facts.train_samples:
        return [
            f"{key} = {largest}: is over a tenth of the {facts.train_samples} training samples; "
            "so large a batch rarely generalises as well"
        ]
    return []


def _check_auto(reach: Reach) -> None:
    """A micro batch that is found by itself is a limit for all trials, within which accumulation holds the batch."""
    micro, accumulation = "batch.micro", "batch.accumulation"
    if AUTO not in reach.values(micro):
        return
    if micro in reach.spec.space:
        rule, remedy = "auto finds one limit for all trials", f"write {micro}: auto outside the space"
        raise Refusal(rule, key=reach.where(micro), value=AUTO, remedy=remedy)
    given = [value for value in reach.values(accumulation) if value is not None]
    if given:
        rule = f"{micro}: auto holds every global batch by as much accumulation as it takes"
        raise Refusal(rule, key=reach.where(accumulation), value=given[0], remedy="leave it out")


def _check_splits(reach: Reach) -> None:
    keys = ("batch.global", "batch.micro", "batch.accumulation")
    for key in keys:
        if reach.count(key) > _MOST_BATCHES:
            rule = f"has {reach.count(key)} values, more than {_MOST_BATCHES}"
            raise Refusal(rule, key=reach.where(key), remedy="give a step, powers_of, or a list")
    # A tighter limit only ever excludes plans, so the tightest one speaks for all.
    tightest = reach.smallest("batch.micro_max")
    for global_batch, micro, accumulation in itertools.product(*(reach.values(key) for key in keys)):
        try:
            batch_plan.plan(
                global_batch,
                reach.spec.cluster.workers,
                micro_batch=None if micro == AUTO else micro,
                accumulation=accumulation,
                micro_batch_max=tightest,
            )
        except batch_plan.InfeasiblePlan as error:
            remedy = feasible_remedy(error)
            raise Refusal(error.rule, key=reach.where("batch.global"), value=global_batch, remedy=remedy) from None


def _check_interval(reach: Reach) -> None:
    budget = reach.spec.budget
    value = budget.model_dump()["eval_every"]
    if budget.eval_every_samples > budget.samples:
        rule = f"must be at most budget.samples, which is {budget.samples}"
        raise Refusal(rule, key="budget.eval_every", value=value, remedy=f"write {budget.samples} or less")
    if budget.eval_every_samples < 1:
        rule = f"is less than one of the {budget.samples} samples of the budget"
        raise Refusal(rule, key="budget.eval_every", value=value, remedy="write a larger share")
