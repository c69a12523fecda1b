"""One suggestion made into a trial: rules applied, durations in samples, the batch split."""

from __future__ import annotations

import pytest

from orchestrator.config.duration import Duration
from orchestrator.config.load import load_spec
from orchestrator.config.resolve import resolve_trial
from orchestrator.config.trial import Target, TrialSpec
from orchestrator.errors import ConfigError


@pytest.fixture
def resolve(digits):
    def run(params, *overrides, **kwargs):
        return resolve_trial(load_spec(digits, overrides).spec, params, **kwargs)

    return run


def test_params_are_laid_over_the_spec(resolve):
    trial = resolve({"batch.global": 256, "lr.base": 0.2, "lr.rule": "sqrt", "lr.warmup": "10%", "task.hidden": 32})
    assert (trial.plan.global_batch, trial.plan.micro_batch, trial.plan.world_size) == (256, 128, 2)
    assert trial.lr.peak == pytest.approx(0.4)
    assert trial.lr.base == 0.2
    assert trial.lr.warmup_samples == 2000
    assert trial.task.options == {"model": "mlp", "hidden": 32}
    assert (trial.budget_samples, trial.eval_every_samples, trial.updates) == (20000, 2000, 79)
    assert TrialSpec.from_dict(trial.to_dict()).key == trial.key


# base 0.02 at 16 samples, linear (open-mmlab/mmdetection#351): the total batch counts, whatever its split.
@pytest.mark.parametrize(("micro", "workers", "peak"), [(8, 2, 0.02), (1, 16, 0.02), (1, 2, 0.0025), (8, 4, 0.04)])
def test_the_global_batch_is_over_all_workers(resolve, micro, workers, peak):
    trial = resolve(
        {"batch.global": micro * workers, "lr.base": 0.02, "lr.rule": "linear"},
        "batch.reference=16",
        f"batch.micro={micro}",
        f"cluster.workers={workers}",
    )
    assert trial.plan.accumulation == 1
    assert trial.lr.peak == pytest.approx(peak)


# base 1e-3 at 256, batch 2048 (xingyizhou/CenterNet#476); noise by hand: (1 + 512/256) / (1 + 512/2048) = 2.4.
@pytest.mark.parametrize(
    ("rule", "peak"), [("linear", 8e-3), ("sqrt", 2.828427e-3), ("none", 1e-3), ("power", 4e-3), ("noise", 2.4e-3)]
)
def test_rules(resolve, rule, peak):
    params = {"batch.global": 2048, "batch.reference": 256, "lr.base": 1e-3, "lr.rule": rule}
    trial = resolve({**params, "lr.exponent": 2 / 3, "lr.noise_scale": 512})
    assert trial.lr.peak == pytest.approx(peak, rel=1e-6)


# Found at 64 on one worker (Lightning-AI/pytorch-lightning#4878): the learning rate travels with its global batch.
@pytest.mark.parametrize(
    ("workers", "global_batch", "accumulation", "peak"), [(4, 64, 1, 0.1), (4, 256, 1, 0.4), (1, 64, 2, 0.1)]
)
def test_the_same_global_batch_keeps_its_learning_rate(resolve, workers, global_batch, accumulation, peak):
    trial = resolve(
        {"batch.global": global_batch, "lr.rule": "linear"},
        f"cluster.workers={workers}",
        f"batch.accumulation={accumulation}",
    )
    assert trial.lr.peak == pytest.approx(peak)


def test_sde_scales_the_optimizer_too(resolve):
    adam = "optimizer={name: AdamW, weight_decay: 0.1}"
    trial = resolve({"batch.global": 256, "lr.rule": "sde"}, adam)
    assert trial.lr.peak == pytest.approx(0.2)
    assert trial.optimizer.options["betas"] == pytest.approx([0.6, 0.996])
    assert trial.optimizer.options["eps"] == pytest.approx(5e-9)
    assert trial.optimizer.options["weight_decay"] == 0.1
    assert resolve({"lr.rule": "sqrt"}, adam).optimizer.options == {"weight_decay": 0.1}


@pytest.mark.parametrize(("warmup", "samples"), [(0, 0), ("5%", 1000), ("2000 samples", 2000), ("50 updates", 6400)])
def test_warmup_in_samples(resolve, warmup, samples):
    assert resolve({"lr.warmup": warmup, "batch.global": 128}).lr.warmup_samples == samples
    assert resolve({"lr.warmup": Duration.parse(warmup), "batch.global": 128}).lr.warmup_samples == samples


def test_shares_become_numbers(resolve):
    trial = resolve({}, "lr.final=10%", "budget.eval_every=25%")
    assert (trial.lr.final, trial.eval_every_samples) == (0.1, 5000)


def test_auto_follows_the_hardware(resolve):
    on_cpu, on_gpu = resolve({}), resolve({}, "cluster.gpus_per_worker=1")
    assert (on_cpu.reducer, on_cpu.loader.pin_memory) == ("flat", False)
    assert (on_gpu.reducer, on_gpu.loader.pin_memory) == ("ddp", True)
    fixed = resolve({}, "cluster.gpus_per_worker=1", "training.reducer=flat", "training.loader.pin_memory=false")
    assert (fixed.reducer, fixed.loader.pin_memory) == ("flat", False)


@pytest.mark.parametrize("kind", ["samples_to_target", "time_to_target", "updates_and_samples"])
def test_target_kinds_stop_at_the_target(resolve, kind):
    modes = {"accuracy": "max"}
    trial = resolve({}, f"objective.kind={kind}", "objective.target=0.9", metric_modes=modes)
    assert trial.target == Target(metric="val/accuracy", value=0.9, mode="max")
    assert trial.stop_at_target
    watched = resolve({}, "objective.target=0.9", metric_modes=modes)
    assert watched.target == trial.target
    assert not watched.stop_at_target
    with pytest.raises(ValueError, match="must tell the direction of 'accuracy'"):
        resolve({}, "objective.target=0.9")
    with pytest.raises(ConfigError, match=r"objective\.target = None"):
        resolve({}, f"objective.kind={kind}", metric_modes=modes)


def test_seed(resolve):
    assert resolve({}, "seed=5").seed == 5
    assert resolve({}, "seed=5", seed=0).seed == 0


@pytest.mark.parametrize(
    ("params", "key", "rule"),
    [
        ({"batch.global": 63}, "batch.global", "must be a multiple of 2"),
        ({"batch.global": 0}, "batch.global", "must be at least 1"),
        ({"batch.globl": 64}, "batch.globl", "unknown key"),
        ({"budget.samples": 64}, "budget.samples", "the same for all trials"),
        ({"lr.rule": "power"}, "lr.rule", "exponent"),
        ({"lr.rule": "sde"}, "lr.rule", "adaptive optimizer"),
        ({"lr.warmup": "200 updates", "batch.global": 128}, "lr.warmup", "over the budget of 20000"),
    ],
)
def test_refusals(resolve, params, key, rule):
    with pytest.raises(ConfigError) as caught:
        resolve(params)
    assert caught.value.key == key
    assert rule in caught.value.rule
