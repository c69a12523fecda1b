"""What two keys, or a key and the task, get wrong together is refused before anything starts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from orchestrator.config.check import Facts, check_spec
from orchestrator.config.load import spec_from_dict
from orchestrator.config.resolve import resolve_trial
from orchestrator.errors import ConfigError

TARGET = ("objective.kind=samples_to_target", "objective.target=0.9")


class Options(BaseModel):
    """A task's options, as a user would type them."""

    model_config = ConfigDict(extra="forbid")
    model: str = "mlp"
    hidden: int = 64


def test_a_sound_spec_passes_in_silence(check):
    assert check() == []


@pytest.mark.parametrize(
    ("overrides", "key", "value", "rule", "remedy"),
    [
        (["space.batch.global=[16, 15]"], "space.batch.global", 15, "multiple of 2 (world 2)", "14 = micro 7"),
        (["space.batch.global=[16, 15]"], "space.batch.global", 15, "multiple of 2 (world 2)", "16 = micro 8"),
        (["batch.micro=24"], "space.batch.global", 16, "multiple of 48 (micro 24 x world 2)", "48 = micro 24"),
        (["batch.accumulation=3"], "space.batch.global", 16, "multiple of 6", "12 = micro 2 x accumulation 3"),
        (["space.batch.micro=[4, 16]"], "space.batch.global", 16, "multiple of 32 (micro 16", "32 = micro 16"),
        (["space.batch.accumulation=[1, 3]"], "space.batch.global", 16, "multiple of 6", "12 = "),
        (["batch.micro=8", "space.batch.micro_max=[4, 32]"], "space.batch.global", 16, "at most", "change batch.micro"),
        (["space.batch.global=null", "batch.global=63"], "batch.global", 63, "multiple of 2", "62 = micro 31"),
        (["space.batch.global=[16, 1438]"], "space.batch.global", 1438, "at most the 1437 training samples", "1437"),
        (["budget.samples=60", "budget.eval_every=6"], "space.batch.global", 64, "at most budget.samples", "raise"),
        (["budget.eval_every=20001"], "budget.eval_every", 20001, "at most budget.samples", "20000 or less"),
        (["budget.eval_every=0.001%"], "budget.eval_every", "0.001%", "less than one", "larger share"),
        (["lr.warmup=20001 samples"], "lr.warmup", "20001 samples", "over budget.samples", "shorten"),
        (["lr.warmup=313 updates"], "lr.warmup", "313 updates", "is 20032 samples at batch 64", "shorten"),
        (
            ["space.lr.warmup={low: 0, high: 313 updates}"],
            "space.lr.warmup",
            "313 updates",
            "is 20032 samples at batch 64",
            "shorten",
        ),
        (["objective.metric=val/acuracy"], "objective.metric", "val/acuracy", "no such metric", "val/accuracy"),
        (["objective.kind=time_to_target"], "objective.target", None, "needs a target", "kind: best_metric"),
        (["task.hiden=3"], "task.hiden", ..., "no such option", "the nearest valid option is hidden"),
        (["space.task.hiden=[3, 4]"], "space.task.hiden", ..., "no such option", "the nearest valid option is hidden"),
        (["space.lr.rule=[sqrt, power]"], "space.lr.rule", "power", "needs lr.exponent", "lr.exponent"),
        (
            ["space.lr.rule=[power]", "space.lr.exponent=[null, 0.5]"],
            "space.lr.rule",
            "power",
            "needs lr.exponent",
            "lr.exponent",
        ),
        (
            ["optimizer={name: AdamW, capturable: true}", "training.offload_optimizer=true"],
            "optimizer.capturable",
            True,
            "cannot be made on the host",
            "remove it, or training.offload_optimizer",
        ),
        (["space.lr.rule=[noise]"], "space.lr.rule", "noise", "needs lr.noise_scale", "lr.noise_scale"),
        (["space.lr.rule=[sde]"], "space.lr.rule", "sde", "adaptive optimizer", "for SGD use"),
        (
            ["space.lr.rule=[sde]", "optimizer={name: AdamW}", "batch.reference=4"],
            "space.lr.rule",
            "sde",
            "beta1 = 0.9 at 16 times the reference batch",
            "Stay below 10 times",
        ),
        (["search.sampler=grid"], "space.lr.base", ..., "cannot enumerate", "step or a list"),
        (["search.early_stopping=race"], "search.early_stopping", "race", "compares samples to a target", "asha"),
        (["search.early_stopping=asha+race"], "search.early_stopping", "asha+race", "to a target", "asha"),
        (
            ["search.early_stopping=asha", "objective.kind=updates_and_samples", "objective.target=1"],
            "search.early_stopping",
            "asha",
            "ranks by one value",
            "race",
        ),
        (["search.lowest_rung=63"], "search.lowest_rung", 63, "largest global batch, which is 64", "64 or more"),
        (["search.lowest_rung=20000"], "search.lowest_rung", 20000, "below budget.samples", "null"),
    ],
)
def test_refusals(check_refused, overrides, key, value, rule, remedy):
    error = check_refused(*overrides)
    assert error.key == key
    if value is not ...:
        assert error.value == value
    assert rule in str(error)
    assert remedy in error.remedy


def test_a_batch_over_the_training_set_is_named_before_its_split(check_refused):
    error = check_refused("space.batch.global=[999999999]")
    assert "training samples" in error.rule


def test_the_file_or_the_override_is_named(check_refused, digits):
    assert check_refused("objective.metric=val/x").file == "--set"
    assert check_refused(metric_modes={"loss": "min"}).file == str(digits)


def test_a_range_of_too_many_batches_wants_a_step(check_refused):
    range_of_batches = "space.batch.global={low: 2, high: 20002, step: 2}"
    error = check_refused(range_of_batches, "budget.samples=100000", train_samples=10**6)
    assert (error.key, error.rule) == ("space.batch.global", "has 10001 values, more than 10000")


@pytest.mark.parametrize("samples", [{"train_samples": 0}, {"val_samples": 0}])
def test_a_task_without_samples(check_refused, samples):
    assert "the task has no" in check_refused(**samples).rule


@pytest.mark.parametrize(
    ("overrides", "key"),
    [(["task.hidden=big"], "task.hidden"), (["space.task.hidden=[64, 1.5]"], "space.task.hidden")],
)
def test_task_options_are_checked_by_the_task(check_refused, overrides, key):
    error = check_refused(*overrides, validate_task=Options.model_validate)
    assert error.key == key
    assert error.value in ("big", 1.5)


def test_optimizer_options_are_checked_by_its_owner(check_refused, check):
    def validate(name, options):
        if options.get("momentum", 0) > 1:
            raise ValueError("momentum must be at most 1")
        if name == "AdamW" and "momentum" in options:
            raise ValueError("AdamW takes no momentum")

    assert check(validate_optimizer=validate) == []
    error = check_refused("space.optimizer.momentum={low: 0.5, high: 1.5}", validate_optimizer=validate)
    assert (error.key, error.value) == ("space.optimizer.momentum", 1.5)
    error = check_refused("space.optimizer.name=[SGD, AdamW]", validate_optimizer=validate)
    assert (error.key, error.value) == ("space.optimizer.name", "AdamW")


@pytest.mark.parametrize(
    ("overrides", "texts"),
    [
        (["space.batch.global=[16, 144]"], ["space.batch.global = 144: is over a tenth of the 1437"]),
        (["space.lr.rule=[linear]", "space.batch.global=[64, 128]"], []),
        (["space.lr.rule=[linear]", "batch.reference=4"], ["rule 'linear' is stretched x16"]),
        (["space.lr.rule=[linear]", "optimizer={name: NAdam}"], ["'linear' with an adaptive optimizer"]),
        (["lr.exponent=0.5"], ["lr.exponent: has no effect without lr.rule power"]),
        (["search.sampler=nsga2"], ["search.sampler = nsga2: is made for two objectives"]),
        (["search.sampler=nsga2", "objective.kind=updates_and_samples", "objective.target=1"], []),
        (["search.startup_trials=24"], ["all 24 trials are random, tpe never suggests"]),
        (["search.sampler=grid", "space.lr.base=[0.1, 0.2]", "search.trials=11"], ["the grid has 12 points"]),
        (["search.sampler=grid", "space.lr.base=[0.1, 0.2]", "search.trials=12"], []),
        ([*TARGET, "search.early_stopping=asha+race", "search.lowest_rung=64"], []),
        (["space.lr.rule=[sde]", "optimizer={name: AdamW}"], []),
        (["lr.warmup=312 updates"], []),
        (["training.offload_optimizer=true"], ["training.offload_optimizer: frees nothing for workers without a GPU"]),
        (["training.offload_optimizer=true", "cluster.gpus_per_worker=1"], []),
        (["lr.warmup=20000 samples"], []),
    ],
)
def test_warnings(check, overrides, texts):
    warnings = check(*overrides)
    assert len(warnings) == len(texts)
    for warning, text in zip(warnings, texts, strict=True):
        assert text in warning


batches = st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True)
maybe = st.none() | st.integers(1, 8)


@settings(max_examples=60, deadline=None)
@given(batches, st.lists(maybe, min_size=1, max_size=2, unique=True), maybe, maybe, st.integers(1, 4))
def test_what_passes_the_check_resolves_whatever_is_suggested(batch, micros, accumulation, micro_max, workers):
    spec = spec_from_dict(
        {
            "task": {"name": "digits"},
            "batch": {"accumulation": accumulation, "micro_max": micro_max},
            "cluster": {"workers": workers},
            "space": {"batch.global": batch, "batch.micro": micros},
        }
    )
    suggestions = [{"batch.global": b, "batch.micro": m} for b, m in itertools.product(batch, micros)]

    def resolves(params):
        try:
            resolve_trial(spec, params)
        except ConfigError:
            return False
        return True

    facts = Facts(train_samples=10**6, val_samples=1, metric_modes={"loss": "min"})
    try:
        check_spec(spec, facts)
    except ConfigError:
        assert not all(map(resolves, suggestions))
    else:
        assert all(map(resolves, suggestions))
