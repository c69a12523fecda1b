"""The noise probe against a gradient whose noise is known: linear regression with frozen weights."""

from __future__ import annotations

import pytest
import toys

from orchestrator.config.trial import OptimizerRef
from orchestrator.tasks.regression import Regression, RegressionConfig
from orchestrator.training.group import Solo

DIM, WINDOWS = 31, 4000


@pytest.mark.parametrize("split", [(16, 1, 2), (8, 2, 2), (8, 4, 1)])
def test_signal_and_noise_are_within_5_percent(split, two):
    # Gaussian inputs, no label noise, |delta|^2 = 1: |G|^2 = 1 and tr(Sigma) = d + 1.
    task = Regression(RegressionConfig(dim=DIM))
    trial = toys.spec(split, updates=WINDOWS, lr=0.0, precision="fp32", noise_probe=True, grad_clip=0.1)
    outcome, seen = toys.train(Solo(), task, trial) if split[2] == 1 else two.run(toys.train, task, trial)[0]
    assert outcome.noise["g2"] == pytest.approx(1.0, rel=0.05)
    assert outcome.noise["trace"] == pytest.approx(DIM + 1, rel=0.05)
    assert outcome.noise["low"] < outcome.noise["value"] < outcome.noise["high"]
    metrics = seen[-1].metrics
    assert metrics["noise_scale"] == pytest.approx(DIM + 1, rel=0.25), "over the last tenth of the updates"
    assert metrics["noise_scale_low"] < metrics["noise_scale"] < metrics["noise_scale_high"]
    assert (outcome.noise["end_value"], outcome.noise["end_windows"]) == (metrics["noise_scale"], WINDOWS // 10)


@pytest.mark.parametrize("split", [(16, 1, 2), (8, 4, 1)])
def test_the_first_updates_of_a_training_agree_with_the_known_scale(split, two):
    # The scale is d + 1 at any weights, so it holds while they move; lr = 0.05 / (1 + 32/B) of the known answer.
    task = Regression(RegressionConfig(dim=DIM))
    held = 0
    for seed in range(20):
        sgd = OptimizerRef(name="SGD")
        trial = toys.spec(split, updates=50, lr=0.025, precision="fp32", noise_probe=True, seed=seed, optimizer=sgd)
        outcome, _ = toys.train(Solo(), task, trial) if split[2] == 1 else two.run(toys.train, task, trial)[0]
        assert outcome.noise["value"] is not None, outcome.noise["reason"]
        held += outcome.noise["low"] <= DIM + 1 <= outcome.noise["high"]
    assert held >= 16, "a 95 % interval holds in fewer than 16 of 20 once in 390 series"


def test_both_reducers_see_the_same_norms(two):
    traces = []
    for reducer in ("flat", "ddp"):
        trial = toys.spec((8, 2, 2), updates=50, lr=0.0, noise_probe=True, reducer=reducer)
        noise = two.run(toys.train, toys.Tokens(), trial)[0][0].noise
        traces.append((noise["trace"], noise["g2"]))
    assert traces[0] == pytest.approx(traces[1], rel=1e-9)


def test_the_loss_scale_does_not_change_the_estimate(two):
    noise = {}
    for precision in ("fp32", "fp16"):
        task = Regression(RegressionConfig(dim=DIM))
        trial = toys.spec((16, 1, 2), updates=200, lr=0.0, precision=precision, noise_probe=True)
        noise[precision] = two.run(toys.train, task, trial)[0][0].noise["trace"]
    assert noise["fp16"] == pytest.approx(noise["fp32"], rel=0.02)


def test_one_worker_without_accumulation_says_why_not():
    outcome, seen = toys.train(Solo(), toys.Tokens(), toys.spec((64, 1, 1), noise_probe=True))
    assert outcome.noise["value"] is None
    assert outcome.noise["reason"].startswith("not determined: one worker without accumulation")
    assert "noise_scale" not in seen[-1].metrics


def test_no_probe_no_estimate():
    assert toys.train(Solo(), toys.Tokens(), toys.spec((64, 1, 1)))[0].noise is None
