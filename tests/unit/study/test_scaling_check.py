"""What a scaling check trains, and what it tells of a record: pure functions, without gangs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console as RichConsole

from orchestrator.config.load import load_spec
from orchestrator.config.scaling_rules import as_scaling
from orchestrator.errors import CheckFailed
from orchestrator.report import scaling_report
from orchestrator.report.scaling_figures import scaling_by_batch, write_scaling_figures
from orchestrator.report.summary import finite_only
from orchestrator.study.crew import Trained
from orchestrator.study.methods import say_again
from orchestrator.study.scaling import metrics_of, outcome_of, scaling_table
from orchestrator.study.scaling_plan import ScalingPlan
from orchestrator.tracking.schema import find_key

MODES = {"loss": "min", "accuracy": "max"}
SPACE: dict[str, Any] = {
    "task": {"name": "regression", "dim": 31},
    "budget": {"samples": 4096, "eval_every": 1024},
    "batch": {"global": 32, "reference": 16},
    "lr": {"base": 0.01, "rule": "linear", "warmup": 0, "decay": "cosine"},
    "study": {"scaling": {"workers": [1, 4], "seeds": 8}},
}


def plan_of(tmp_path: Path, *settings: str) -> ScalingPlan:
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    spec = as_scaling(load_spec(tmp_path / "space.yaml", settings), file="f").spec
    return ScalingPlan(spec=spec, metric_modes=MODES, train_samples=10**6)


def record(plan: ScalingPlan, lost: float = 0.0, spread: float = 0.01) -> list[Trained]:
    """Trials that end at 0.5 and, of more than one worker, worse by `lost`; seeds move all arms alike."""
    trials = []
    for wanted in plan.runs():
        spec = wanted.spec
        shift = spread * float(np.random.default_rng(spec.seed).standard_normal())
        own = 0.2 * spread * float(np.random.default_rng([spec.seed, spec.plan.global_batch]).standard_normal())
        value = 0.5 + shift + own + (lost if spec.plan.global_batch > plan.per_worker_batch else 0.0)
        one = Trained(trial=f"t{len(trials):04d}", name=wanted.name, status="completed")
        one.outcome = {"samples_seen": 4096, "notes": []}
        one.evaluations = [
            {"samples_seen": seen, "metrics": {"val/loss": v, "val/accuracy": 1 - v}}
            for seen, v in ((1024, 2.0), (4096, value))
        ]
        trials.append(one)
    return trials


def test_arms_differ_in_batch_and_learning_rate_alone(tmp_path: Path) -> None:
    runs = plan_of(tmp_path).runs()
    assert [(one.spec.seed, one.spec.plan.global_batch) for one in runs[:4]] == [(0, 16), (0, 64), (1, 16), (1, 64)]
    assert len({one.name for one in runs}) == len(runs) == 16
    for small, large in zip(runs[::2], runs[1::2], strict=True):
        a, b = small.spec, large.spec
        assert (a.seed, a.budget_samples, a.task, a.optimizer) == (b.seed, b.budget_samples, b.task, b.optimizer)
        assert (a.lr.peak, b.lr.peak) == pytest.approx((0.01, 0.04)), "by the rule, from the reference batch"
        assert a.updates * a.plan.global_batch == b.updates * b.plan.global_batch == 4096
        assert b.plan.micro_batch <= 16, "no more than one worker was given in the setting that is scaled"


def test_other_workers_train_the_same_trajectories(tmp_path: Path) -> None:
    one, two = (plan_of(tmp_path, f"cluster.workers={w}", "study.scaling.per_worker_batch=16").runs() for w in (1, 2))
    assert [run.spec.trajectory for run in one] == [run.spec.trajectory for run in two]


@pytest.mark.parametrize(
    ("lost", "settings", "verdict", "said"),
    [
        (0.0, (), "held", "Held: 4 workers (batch 64) against 1 (batch 16): val/loss is "),
        (0.05, (), "lost", "beyond the noise between seeds"),
        (-0.05, (), "gained", "val/loss is better by 0.0"),
        (0.05, ("study.scaling.tolerance=0.1",), "held", "clearly worse, and within the tolerance of 0.1"),
        (0.05, ("study.scaling.tolerance=0.02",), "lost", "beyond the tolerance of 0.02"),
        (0.0075, (), "not told apart", "seeds would probably do"),
        (0.05, ("objective.metric=val/accuracy",), "lost", "val/accuracy is worse by 0.0"),
        (-0.05, ("objective.metric=val/accuracy",), "gained", "val/accuracy is better by 0.0"),
    ],
)
def test_verdicts(tmp_path: Path, lost: float, settings: tuple[str, ...], verdict: str, said: str) -> None:
    plan = plan_of(tmp_path, *settings)
    found = finite_only(outcome_of(plan, record(plan, lost), done=True))
    assert found["verdict"] == verdict
    assert said in found["sentence"]
    assert bool(found["broken"]) == (verdict == "lost") == ("(lr.rule linear)" in found["sentence"])
    row = found["rows"][-1]
    assert row["lost"]["low"] < lost < row["lost"]["high"]
    assert found["equal_samples"] == 4096
    json.dumps(found, allow_nan=False)


def test_runs_that_diverge_are_a_verdict_without_a_number(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "study.scaling.workers=[1, 2, 4]")
    trials = record(plan)
    for one in trials:
        if one.name.startswith("batch of 4 workers"):
            one.status, one.evaluations = "diverged", one.evaluations[:1]
    found = finite_only(outcome_of(plan, trials, done=True))
    assert found["verdict"] == "diverged"
    assert found["broken"] == "quality is lost with the global batch of 4 workers, after equally many samples"
    assert found["rows"][-1]["lost"]["value"] is None
    assert found["sentence"].endswith("Quality is held up to 2 workers.")
    assert "8 of 8 runs diverged" in found["sentence"]
    assert scaling_table(found).column("diverged").to_pylist() == [0, 0, 8]
    assert len(scaling_by_batch(found, "name").axes) == 2


def test_a_base_that_diverges_leaves_nothing_to_compare_with(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    trials = record(plan)
    trials[0].status = "diverged"
    found = finite_only(outcome_of(plan, trials, done=True))
    assert (found["verdict"], found["broken"]) == ("not told apart", "")
    assert "nothing to compare with. Lower lr.base" in found["sentence"]
    assert write_scaling_figures(found, "name", tmp_path) == []


def test_a_model_that_depends_on_the_split_is_told(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    trials = record(plan)
    trials[0].outcome = {"samples_seen": 4096, "notes": ["statistically equal: batch norm", "something else"]}
    (told,) = outcome_of(plan, trials, done=True)["warnings"]
    assert told.startswith("statistically equal: batch norm; 2 workers trained every batch here")


def test_a_check_that_was_cut_has_no_verdict(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    found = outcome_of(plan, record(plan)[:5], done=False)
    assert (found["verdict"], found["rows"], metrics_of(found)) == ("unfinished", [], {})


def test_worker_counts_whose_runs_could_not_be_trained_are_not_compared(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    found = outcome_of(plan, record(plan)[:5], done=True)
    assert (found["verdict"], found["rows"], metrics_of(found)) == ("not determined", [], {})


def test_table_metrics_figure_and_last_words(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    found = finite_only(outcome_of(plan, record(plan, 0.05), done=True))
    rows = scaling_table(found).to_pylist()
    assert [(row["workers"], row["global_batch"], row["verdict"]) for row in rows] == [(1, 16, "base"), (4, 64, "lost")]
    assert rows[0]["lost"] is None
    metrics = metrics_of(found)
    assert [rung["global_batch"] for rung in metrics["by_batch"]] == [16, 64]
    for part in (metrics, *metrics["by_batch"]):
        assert all(
            find_key("metric", "sweep", name) and math.isfinite(value) for name, value in part["metrics"].items()
        )
    assert [path.name for path in write_scaling_figures(found, "name", tmp_path)] == ["scaling.png"]
    with (tmp_path / "out").open("w") as file:
        scaling_report.write(RichConsole(file=file, width=120), found, "the/run")
    text = (tmp_path / "out").read_text()
    assert "val/loss after 4,096 samples, 8 seeds each" in text
    assert text.splitlines()[-1] == "the/run"


def test_a_check_that_did_not_hold_says_so_whenever_it_is_asked() -> None:
    class Console:
        def finish(self, *told: object) -> None:
            self.told = told

    for summary in ({"broken": ""}, {}):
        say_again("scaling", Console(), summary, "uri")  # type: ignore[arg-type]
    with pytest.raises(CheckFailed, match="lost") as failed:
        say_again("scaling", Console(), {"broken": "quality is lost"}, "uri")  # type: ignore[arg-type]
    assert failed.value.exit_code == 3
