"""A study before it can plan: its baseline run, and the target and the ladder that it is read for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.config.load import load_spec
from orchestrator.config.study_rules import as_study
from orchestrator.errors import ConfigError
from orchestrator.study.__main__ import main
from orchestrator.study.protocol import Plan, Protocol
from orchestrator.study.trials import BASELINE, StudyTrial
from orchestrator.theory.ladder_planner import Rival

SPACE = """\
task: {name: digits}
objective: {kind: best_metric, metric: val/loss}
budget: {samples: 10000}
batch: {reference: 32}
lr: {base: 0.1, rule: none, warmup: 100 samples, decay: none}
space:
  lr.base: {low: 0.002, high: 2.0, log: true}
"""
NOISE = {"noise_scale": 40.0, "noise_scale_low": 30.0, "noise_scale_high": 50.0}
TARGET = "objective={kind: samples_to_target, metric: val/loss, target: 0.5}"


@pytest.fixture
def protocol(tmp_path):
    def make(*overrides: str, train_samples: int = 1437) -> Protocol:
        path = tmp_path / "space.yaml"
        path.write_text(SPACE)
        spec = as_study(load_spec(path, overrides), file=str(path)).spec
        return Protocol(spec=spec, metric_modes={"loss": "min"}, train_samples=train_samples)

    return make


def baseline(protocol: Protocol, *, status: str = "completed", earlier: Any = (), noise: Any = NOISE) -> StudyTrial:
    """A baseline run whose loss falls as exp(-t / 5000)."""
    run = protocol.baseline(list(earlier))
    assert run is not None
    steps = range(0, run.max_samples + 1, 100)
    evaluations = [{"samples_seen": t, "metrics": {"val/loss": math.exp(-t / 5000), **noise}} for t in steps]
    return StudyTrial(
        trial="t0000", run=run, rival=Rival(), phase=BASELINE, evaluations=evaluations, status=status,
        outcome={"samples_seen": steps[-1]},
    )  # fmt: skip


def planned(protocol: Protocol, *trials: StudyTrial) -> Plan:
    plan = protocol.plan(trials)
    assert isinstance(plan, Plan)
    return plan


def test_a_given_target_and_ladder_need_no_baseline_run(protocol) -> None:
    study = protocol(TARGET, "study.batches=[8, 32, 128]")
    assert study.baseline([]) is None
    plan = planned(study)
    assert (plan.config.batches, plan.config.target, plan.notes) == ((8, 32, 128), 0.5, ())
    assert (plan.config.start_lr, plan.config.reference_batch, plan.config.budget_samples) == (0.1, 32, 10_000)
    assert plan.config.total_samples == 1_000_000


def test_the_target_is_what_the_baseline_run_reached_after_its_share(protocol) -> None:
    study = protocol("study.batches=[8, 32, 128]", "study.target_from=40%")
    one = baseline(study)
    assert (one.run.global_batch, one.run.lr, one.run.max_samples) == (32, 0.1, 5600)
    assert study.baseline([one]) is None
    plan = planned(study, one)
    assert plan.goal.value == pytest.approx(math.exp(-0.8), rel=1e-3)
    assert "after 4,000 samples" in plan.notes[0]
    result = one.result(plan.goal)
    assert result is not None
    assert result.ended in ("overshot", "budget")


def test_the_ladder_lies_around_the_noise_scale(protocol) -> None:
    study = protocol(TARGET)
    plan = planned(study, baseline(study))
    assert plan.config.batches == (2, 4, 8, 16, 64, 256)
    assert plan.config.noise_scale == 40.0
    assert "noise scale of the baseline run, 40 samples" in plan.notes[-1]


@pytest.mark.parametrize(("workers", "multiple"), [(3, 3), (4, 4), (6, 6)])
def test_batches_are_made_of_whole_shares(protocol, workers: int, multiple: int) -> None:
    study = protocol(TARGET, f"cluster.workers={workers}", "batch.reference=48")
    batches = planned(study, baseline(study)).config.batches
    assert len(batches) >= 5
    assert all(batch % multiple == 0 for batch in batches)


def test_batches_stay_within_what_can_be_trained(protocol) -> None:
    study = protocol(TARGET, train_samples=100)
    huge = {name: 100 * value for name, value in NOISE.items()}
    batches = planned(study, baseline(study, noise=huge)).config.batches
    assert batches == (4, 8, 16, 32, 64)


def test_an_undetermined_noise_scale_is_said_and_the_reference_takes_its_place(protocol) -> None:
    study = protocol(TARGET)
    none = {"noise_scale": 0.0, "noise_scale_low": 0.0, "noise_scale_high": 9.0}
    assert "around batch.reference" in planned(study, baseline(study, noise=none)).notes[-1], "0 places nothing"
    plan = planned(study, baseline(study, noise={}))
    assert plan.config.noise_scale is None
    assert "did not determine" in plan.notes[-1]
    assert plan.config.batches == (2, 4, 8, 16, 64, 256)


def test_a_baseline_run_that_diverges_is_followed_by_a_gentler_one(protocol) -> None:
    study = protocol("study.batches=[8, 32, 128]")
    first = baseline(study, status="diverged")
    second = study.baseline([first])
    assert second is not None
    assert (second.lr, second.seed) == (0.025, first.run.seed)
    third = baseline(study, status="diverged", earlier=[first])
    fourth = baseline(study, status="diverged", earlier=[first, third])
    assert study.baseline([first, third, fourth]) is None
    assert "diverged at every learning rate from 0.1 down to 0.002" in str(study.plan([first, third, fourth]))


def test_a_run_becomes_a_trial_whose_learning_rate_does_not_know_its_budget(protocol) -> None:
    study = protocol("study.batches=[8, 32, 128]")
    run = study.baseline([])
    assert run is not None
    trial = study.trial_spec(run, None)
    assert (trial.plan.global_batch, trial.lr.peak, trial.seed, trial.budget_samples) == (32, 0.1, run.seed, 7000)
    assert (trial.lr.warmup_samples, trial.lr.decay, trial.stop_at_target, trial.target) == (100, "none", False, None)
    assert (trial.eval_growth, trial.eval_every_samples) == (0.03, 5)


def test_a_ladder_that_cannot_be_placed_is_refused(protocol) -> None:
    with pytest.raises(ConfigError, match=r"2 batches can be trained.*use fewer workers"):
        protocol(TARGET, "cluster.workers=16", train_samples=40).check("space.yaml")
    with pytest.raises(ConfigError, match="one batch size only"):
        protocol(TARGET, "cluster.workers=1").check("space.yaml")
    protocol(TARGET, "cluster.workers=1", "batch.accumulation=2").check("space.yaml")
    protocol(TARGET, "cluster.workers=1", "study.batches=[8, 32, 128]").check("space.yaml")


def test_a_batch_that_cannot_be_split_is_named_where_it_was_written(tmp_path, capsys) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    for settings, source in ((["study.batches=[8, 32, 127]"], "--set"), (["space.batch.global=[8, 32, 127]"], "--set")):
        assert main([str(path), "--out", str(tmp_path / "run"), *(w for s in settings for w in ("--set", s))]) == 2
        told = capsys.readouterr().err
        assert told.startswith(
            f"error: {source}: {settings[0].split('=')[0]} = 127: global batch 127 must be a multiple"
        )
    assert not (tmp_path / "run").exists()
