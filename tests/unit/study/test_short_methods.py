"""What branches and scans train, and what they tell of a record: pure functions, without gangs."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

from orchestrator.config.load import load_spec
from orchestrator.config.short_rules import as_branch, as_scan
from orchestrator.errors import ConfigError
from orchestrator.report import branch_report
from orchestrator.report.branch_figures import branch_rates, noise_along_training, write_branch_figures
from orchestrator.report.scan_figures import scan_table, write_scan_figures
from orchestrator.report.summary import finite_only
from orchestrator.study.branch_outcome import branches_table, growth, metrics_of, outcome_of
from orchestrator.study.branch_plan import PARENT, BranchPlan
from orchestrator.study.crew import Trained, by_name, trained_of
from orchestrator.study.places import around_noise, places
from orchestrator.study.scan import metrics_of as scan_metrics_of
from orchestrator.study.scan import outcome_of as scan_outcome_of
from orchestrator.study.scan import scan_table as scan_parquet
from orchestrator.study.scan_plan import ScanPlan
from orchestrator.theory.critical_batch import Estimate

MODES = {"loss": "min", "accuracy": "max"}
SPACE: dict[str, Any] = {
    "task": {"name": "regression", "dim": 31},
    "budget": {"samples": 4096, "eval_every": 256},
    "batch": {"reference": 16},
    "lr": {"base": 0.01, "rule": "sqrt", "warmup": "10 updates", "decay": "none"},
    "study": {"batches": [8, 16, 32, 64], "branch": {"samples": 1024}, "scan": {"updates": 100}},
}


def branch_plan(tmp_path: Path, *settings: str, train_samples: int = 10**6) -> BranchPlan:
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    spec = as_branch(load_spec(tmp_path / "space.yaml", settings), file="f").spec
    return BranchPlan(spec=spec, metric_modes=MODES, train_samples=train_samples)


def scan_plan(tmp_path: Path, *settings: str) -> ScanPlan:
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    spec = as_scan(load_spec(tmp_path / "space.yaml", settings), file="f").spec
    return ScanPlan(spec=spec, metric_modes=MODES, train_samples=10**6)


def evaluation(samples: int, updates: int, loss: float, **metrics: float) -> dict[str, Any]:
    found = {"val/loss": loss, "lr": 0.01, "noise_scale": 30.0, "noise_scale_low": 25.0, "noise_scale_high": 36.0}
    return {"samples_seen": samples, "updates": updates, "metrics": found | metrics}


def record(plan: BranchPlan, half_at: float = 32.0) -> list[Trained]:
    """Trials whose loss falls at 1e-3 / (1 + B / half_at) a sample, and those of the parent."""
    parent = Trained(trial="t0000", name=PARENT, status="completed", outcome={"samples_seen": plan.marks[-1]})
    parent.evaluations = [
        evaluation(seen, seen // 16, math.exp(-seen * 1e-4)) for seen in range(256, plan.marks[-1] + 1, 256)
    ]
    trials = [parent]
    for wanted in plan.branches(plan.batches(Estimate())[0], "folder"):
        spec = wanted.spec
        begin, batch = spec.begins_at, spec.plan.global_batch
        jitter = math.exp(0.02 * np.random.default_rng([batch, spec.seed, begin]).standard_normal())
        slope = 1e-3 / (1 + batch / half_at) * jitter
        points = range(begin, begin + plan.length_samples + 1, max(batch, 16))
        one = Trained(
            trial=f"t{len(trials):04d}",
            name=wanted.name,
            spec=spec.to_dict(),
            status="completed",
            outcome={"samples_seen": points[-1]},
        )
        one.evaluations = [
            evaluation(seen, (seen - begin) // batch, math.exp(-begin * 1e-4 - (seen - begin) * slope))
            for seen in points
        ]
        trials.append(one)
    return trials


def test_checkpoints_lie_at_halves_of_the_budget_on_whole_updates(tmp_path):
    plan = branch_plan(tmp_path)
    plan.check("f")
    assert plan.marks == (1024, 2048, 4096)
    parent = plan.parent()
    assert (parent.keep_at, parent.budget_samples, parent.plan.global_batch) == (plan.marks, 4096, 16)
    assert branch_plan(tmp_path, "batch.reference=48", "study.batches=[24, 48, 96]").marks == (1008, 2016, 4080)


def test_branches_go_on_from_each_checkpoint_at_every_batch(tmp_path):
    plan = branch_plan(tmp_path)
    wanted = plan.branches(*[plan.batches(Estimate())[0]], "folder")
    assert len({one.name for one in wanted}) == len(wanted) == 3 * 4 * 2
    parent = plan.parent()
    for one in wanted:
        spec = one.spec
        assert spec.start.trajectory == parent.trajectory
        assert spec.budget_samples == spec.begins_at + 1024
        assert spec.seed != parent.seed
        assert spec.lr.warmup_samples == parent.lr.warmup_samples == 160, "of the parent's updates"
        assert spec.lr.peak == pytest.approx(0.01 * math.sqrt(spec.plan.global_batch / 16))


def test_batches_are_placed_around_the_noise_scale_where_none_are_named(tmp_path):
    plan = branch_plan(tmp_path, "study.batches=auto", "study.branch.samples=2048")
    found, note = plan.batches(Estimate(value=32.0, low=20.0, high=40.0))
    assert found == (2, 4, 8, 16, 64, 128)
    assert "around the noise scale at the last checkpoint, 32 samples" in note
    assert "no noise scale is known, 16 samples" in plan.batches(Estimate())[1]
    assert around_noise(1000.0, [8, 16]) == (8, 16)
    assert around_noise(1000.0, []) == ()
    assert places(
        branch_plan(tmp_path, "cluster.workers=3", "study.batches=[6, 12, 24]", "batch.reference=12").spec, 30
    ) == [3, 6, 12, 24]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["objective.metric=val/accuracy"], "objective.metric"),
        (["study.branch.checkpoints=20"], "study.branch.checkpoints"),
        (["lr.warmup=100 updates"], "study.branch.checkpoints"),
        (["study.branch.samples=512"], "study.branch.samples"),
    ],
)
def test_what_would_tell_nothing_is_refused(tmp_path, settings, key):
    with pytest.raises(ConfigError) as refusal:
        branch_plan(tmp_path, *settings).check("space.yaml")
    assert refusal.value.key == key
    assert refusal.value.remedy


def test_the_outcome_of_branches(tmp_path):
    plan = branch_plan(tmp_path)
    trials = record(plan)
    found = finite_only(outcome_of(plan, trials, done=True))
    assert found["verdict"] == "determined"
    assert found["samples"] == {
        "spent": 4096 + 3 * 4 * 2 * 1024, "parent": 4096, "branches": 3 * 4 * 2 * 1024, "runs": len(trials)
    }  # fmt: skip
    for one in found["checkpoints"]:
        assert one["local_critical_batch"]["local_critical_batch"] == pytest.approx(32.0, rel=0.15)
        assert one["noise_scale"] == {"value": 30.0, "low": 25.0, "high": 36.0}
        assert [row["global_batch"] for row in one["batches"]] == [8, 16, 32, 64]
    assert found["sentence"].startswith("After 4,096 samples the loss falls half as fast per sample at batch 3")
    assert "From 1,024 to 4,096 samples it did not clearly change" in found["sentence"]
    assert branches_table(found).num_rows == 12
    assert [point["samples_seen"] for point in metrics_of(found)["by_samples"]] == [1024, 2048, 4096]
    json.dumps(found, allow_nan=False)


def test_without_an_estimate_the_sentence_tells_the_bound(tmp_path):
    plan = branch_plan(tmp_path)
    found = outcome_of(plan, record(plan, half_at=1e6), done=True)
    assert found["verdict"] == "not determined"
    assert "samples the local critical batch is not determined: the rate does not clearly fall" in found["sentence"]
    assert "the local critical batch is above" in found["sentence"]


def test_growth_is_told_where_it_is_clear():
    def at(samples: int, value: float) -> dict[str, Any]:
        local = {"local_critical_batch": value, "low": value / 1.1, "high": value * 1.1}
        return {"samples_seen": samples, "local_critical_batch": local}

    found = growth([at(1000, 10.0), at(2000, 15.0), at(4000, 40.0)])
    assert found["factor"] == pytest.approx(4.0)
    assert 3.0 < found["low"] < found["high"] < 5.0
    assert growth([at(1000, 10.0)]) is None


def test_a_study_that_was_cut_or_whose_run_diverged_has_no_number(tmp_path):
    plan = branch_plan(tmp_path)
    trials = record(plan)
    assert outcome_of(plan, trials[:5], done=False)["verdict"] == "unfinished"
    assert outcome_of(plan, [], done=False)["checkpoints"] == []
    gone = Trained(trial="t0000", name=PARENT, status="diverged", outcome={"reason": "the loss", "samples_seen": 64})
    found = outcome_of(plan, [gone], done=True)
    assert found["verdict"] == "diverged"
    assert "Lower lr.base" in found["sentence"]
    assert metrics_of(found) == {}
    assert write_branch_figures(found, "name", tmp_path) == []


def test_branches_that_diverge_leave_smaller_batches(tmp_path):
    plan = branch_plan(tmp_path)
    trials = record(plan)
    for one in trials:
        if "at batch 64" in one.name:
            one.status = "diverged"
    found = outcome_of(plan, trials, done=True)
    last = found["checkpoints"][-1]
    assert last["batches"][-1]["diverged"]
    assert last["local_critical_batch"]["local_critical_batch"] == pytest.approx(32.0, rel=0.3)
    assert "does not fall at batch 64" in found["warnings"][0]


def told(plan: BranchPlan, trials: list[Trained], folder: Path) -> dict[str, Any]:
    """What is told of branches, with everything that shows it."""
    found: dict[str, Any] = finite_only(outcome_of(plan, trials, done=True))
    json.dumps(found, allow_nan=False)
    branches_table(found)
    metrics_of(found)
    write_branch_figures(found, "name", folder)
    branch_report.write(Console(file=io.StringIO()), {**found, "trials": []}, "run")
    return found


def reshaped(trials: list[Trained], loss: Callable[[float, int], float]) -> list[Trained]:
    """The branches with other losses, by samples since the checkpoint and batch."""
    for one in trials[1:]:
        begin, batch = one.evaluations[0]["samples_seen"], one.spec["plan"]["global_batch"]
        for e in one.evaluations:
            e["metrics"]["val/loss"] = loss(e["samples_seen"] - begin, batch)
    return trials


def test_branches_that_fall_and_then_come_to_rest_or_rise_do_not_fall(tmp_path):
    plan = branch_plan(tmp_path, "study.branch.floor=0")
    for slope in (1e-5, 0.0):
        found = told(plan, reshaped(record(plan), lambda x, _, s=slope: 0.5 + (0.4 if x == 0 else s * x)), tmp_path)
        local = found["checkpoints"][-1]["local_critical_batch"]
        assert (local["verdict"], local["local_critical_batch"]) == ("loss rises", None)
        assert "the loss does not fall at batch 8" in local["reason"]
    mixed = reshaped(
        record(plan),
        lambda x, b: 0.5 + (0.4 if x == 0 else 1e-5 * x) if b == 64 else math.exp(-x * 1e-3 / (1 + b / 32)),
    )
    found = told(plan, mixed, tmp_path)
    assert found["checkpoints"][-1]["local_critical_batch"]["local_critical_batch"] == pytest.approx(32.0, rel=0.1)
    assert "the loss does not fall at batch 64: only smaller batches were used" in found["warnings"][-1]


def test_a_floor_above_a_loss_that_was_reached_is_a_verdict(tmp_path):
    plan = branch_plan(tmp_path, "study.branch.floor=0.5")
    last = told(plan, record(plan), tmp_path)["checkpoints"][-1]
    assert last["local_critical_batch"]["verdict"] == "below floor"
    assert "is not above the floor 0.5. Give a lower floor" in last["local_critical_batch"]["reason"]
    assert last["tolerance_batch"]["tolerance_batch"] == 8, "which needs no floor"


def test_losses_may_be_below_zero_where_no_floor_is_given(tmp_path):
    plan = branch_plan(tmp_path)
    plain = told(plan, record(plan), tmp_path)["checkpoints"][-1]
    for shift in (3.0, 0.5):  # all below 0, and some
        trials = record(plan)
        for one in trials:
            for e in one.evaluations:
                e["metrics"]["val/loss"] -= shift
        found = told(plan, trials, tmp_path)["checkpoints"][-1]
        local, same = found["local_critical_batch"], plain["local_critical_batch"]
        assert (local["in_folds"], local["one_step"]["value"] is None) == (
            (False, True) if shift > 1 else (True, False)
        )
        for end in ("local_critical_batch", "low", "high"):
            assert local[end] == pytest.approx(same[end])
        assert found["tolerance_batch"]["tolerance_batch"] == plain["tolerance_batch"]["tolerance_batch"]


def test_an_objective_that_is_not_finite_somewhere_is_left_out_there(tmp_path):
    plan = branch_plan(tmp_path)
    trials = record(plan)
    del trials[3].evaluations[2]["metrics"]["val/loss"]
    assert told(plan, trials, tmp_path)["verdict"] == "determined"
    for one in trials:
        if "at batch 64" in one.name:
            del one.evaluations[-1]["metrics"]["val/loss"]
    last = told(plan, trials, tmp_path)["checkpoints"][-1]
    assert [row["diverged"] for row in last["batches"]] == [False, False, False, True]
    for at in (0, -1):
        for one in trials:
            one.evaluations[at]["metrics"].pop("val/loss", None)
    assert told(plan, trials, tmp_path)["verdict"] == "not determined"


def test_only_the_batch_that_diverged_is_told_to_have_diverged(tmp_path):
    plan = branch_plan(tmp_path)
    trials = record(plan)
    for one in trials:
        if "at batch 8," in one.name:
            one.status = "diverged"
    last = told(plan, trials, tmp_path)["checkpoints"][-1]
    assert [row["diverged"] for row in last["batches"]] == [True, False, False, False]
    assert last["tolerance_batch"]["reason"] == "not determined: the smallest batch diverged"
    assert all(row["above_smallest"] is None for row in last["batches"])


def test_figures_of_branches(tmp_path):
    plan = branch_plan(tmp_path)
    found = finite_only(outcome_of(plan, record(plan), done=True))
    (axes,) = branch_rates(found, "name").axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("global batch (samples)", "e-folds of loss a sample")
    assert len(axes.get_legend().get_texts()) == 3
    (axes,) = noise_along_training(found, "name").axes
    assert axes.get_xlabel() == "samples seen"
    assert len(axes.collections) >= 1, "a band"
    assert [path.name for path in write_branch_figures(found, "name", tmp_path)] == [
        "branch_rates.png",
        "noise_scale.png",
    ]


def test_a_scan_makes_as_many_updates_at_every_batch(tmp_path):
    plan = scan_plan(tmp_path)
    runs = plan.runs()
    assert [(one.spec.plan.global_batch, one.spec.updates) for one in runs] == [(b, 100) for b in (8, 16, 32, 64)]
    assert [one.spec.lr.warmup_samples for one in runs] == [10 * b for b in (8, 16, 32, 64)]
    assert {one.spec.eval_every_samples for one in runs} == {800 // 24}
    assert scan_plan(tmp_path, "study.batches=auto").batches == (4, 8, 16, 32, 64, 128)


def scanned(plan: ScanPlan) -> list[Trained]:
    trials = []
    for wanted in plan.runs():
        batch = wanted.spec.plan.global_batch
        points = range(0, 100 * batch + 1, max(batch, 32))
        one = Trained(
            trial=f"t{len(trials):04d}", name=wanted.name, status="completed", outcome={"samples_seen": points[-1]}
        )
        for seen in points:
            loss = math.exp(-seen * 1e-3 / (1 + batch / 32))
            more = {"train/loss": loss, "samples_per_second": 100.0 * batch} if seen else {}
            one.evaluations.append(evaluation(seen, seen // batch, loss, **more))
        trials.append(one)
    return trials


def test_the_outcome_of_a_scan(tmp_path):
    plan = scan_plan(tmp_path)
    found = finite_only(scan_outcome_of(plan, scanned(plan), done=True))
    assert (found["verdict"], found["equal_samples"], found["equal_updates"]) == ("compared", 800, 100)
    assert [row["slower"] for row in found["rows"]] == [False, True, True, True]
    assert [row["samples_per_second"] for row in found["rows"]] == [800.0, 1600.0, 3200.0, 6400.0]
    assert scan_parquet(found).num_rows == 4
    assert [rung["global_batch"] for rung in scan_metrics_of(found)["by_batch"]] == [8, 16, 32, 64]
    assert scan_table(found, "name").axes[0].get_ylabel() == "use of samples"
    assert [path.name for path in write_scan_figures(found, "name", tmp_path)] == ["scan.png"]
    cut = scan_outcome_of(plan, scanned(plan)[:2], done=False)
    assert (cut["verdict"], cut["rows"], scan_metrics_of(cut)) == ("unfinished", [], {})


def test_a_record_is_read_back():
    events = [
        {"event": "sweep_started"},
        {"event": "trial_started", "trial": "t0000", "asked": "one", "spec": {"seed": 3}},
        {"event": "evaluation", "trial": "t0000", "samples_seen": 8},
        {"event": "trial_ended", "trial": "t0000", "status": "failed", "outcome": {"samples_seen": 16}},
        {"event": "trial_started", "trial": "t0001", "asked": "one", "spec": {"seed": 3}},
        {"event": "evaluation", "trial": "t0001", "samples_seen": 8},
    ]
    first, second = trained_of(events)
    assert (first.status, first.samples) == ("failed", 16)
    assert (second.status, second.samples) == ("running", 8)
    assert by_name([first, second]) == {"one": second}
