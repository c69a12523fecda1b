"""Every search space that ships fits its task, and says nothing about its numbers that is not so."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from orchestrator.config.check import check_spec
from orchestrator.config.facts import Facts
from orchestrator.config.load import load_spec
from orchestrator.config.reach import Reach
from orchestrator.config.resolve import resolve_trial
from orchestrator.config.scaling_rules import as_scaling
from orchestrator.config.short_rules import as_branch
from orchestrator.config.spec import SweepSpec
from orchestrator.config.study_rules import as_study, ladder_of
from orchestrator.study.branch_plan import BranchPlan
from orchestrator.study.protocol import Protocol
from orchestrator.study.scaling_plan import ScalingPlan
from orchestrator.tasks import quadratic, regression
from orchestrator.theory.critical_batch import Estimate
from orchestrator.training.task import Task

SPACES = Path(__file__).parents[3] / "search_spaces"
NAMES = ["digits", "bytes", "table", "quadratic", "regression"]
STUDIES = ["digits_study", "bytes_study", "quadratic_study"]
BRANCHES = ["regression_branches"]
SCALED = ["digits_scaling"]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def _load(name: str) -> tuple[SweepSpec, Task]:
        monkeypatch.chdir(tmp_path)
        path = SPACES / f"{name}.yaml"
        if name == "table":
            (line,) = re.findall(r'python -c "(.*)"', path.read_text())
            exec(line, {})
        loaded = load_spec(path)
        task_class = getattr(importlib.import_module(f"orchestrator.tasks.{name}"), name.capitalize())
        task = task_class(task_class.Config.model_validate(loaded.spec.task.options))
        facts = Facts(
            train_samples=len(task.train_data()),
            val_samples=len(task.val_data()),
            metric_modes=task.metric_modes,
            task_options=tuple(task_class.Config.model_fields),
            validate_task=task_class.Config.model_validate,
        )
        warnings = [*loaded.warnings, *check_spec(loaded.spec, facts, file=str(path))]
        # 256 of 1,437 digits is meant: the largest batch shows what too large a batch costs.
        assert [w for w in warnings if "over a tenth" not in w or name != "digits"] == []
        return loaded.spec, task

    return _load


@pytest.mark.parametrize("name", NAMES)
def test_space_fits_its_task(load, name: str) -> None:
    spec, task = load(name)
    assert spec.name == spec.task.name == name
    reach = Reach(spec)
    for end in (0, -1):
        params = {key: reach.ends(key)[end] for key in spec.space}
        trial = resolve_trial(spec, params, metric_modes=task.metric_modes)
        assert trial.plan.world_size == 2
        assert trial.lr.peak > 0


@pytest.mark.parametrize("name", STUDIES)
def test_a_studys_space_can_be_studied(name: str) -> None:
    path = SPACES / f"{name}.yaml"
    spec = as_study(load_spec(path), file=str(path)).spec
    assert f"{spec.task.name}_study" == spec.name == name
    task_class = getattr(importlib.import_module(f"orchestrator.tasks.{spec.task.name}"), spec.task.name.capitalize())
    task = task_class(task_class.Config.model_validate(spec.task.options))
    study = Protocol(spec=spec, metric_modes=task.metric_modes, train_samples=len(task.train_data()))
    study.check(str(path))
    assert set(ladder_of(spec) or study.places()) <= set(study.places())


def test_the_space_of_branches_states_the_noise_scale_and_takes_short_steps() -> None:
    path = SPACES / "regression_branches.yaml"
    spec = as_branch(load_spec(path), file=str(path)).spec
    study = BranchPlan(spec=spec, metric_modes={"loss": "min"}, train_samples=2**18)
    study.check(str(path))
    scale = spec.task.options["dim"] + 1
    assert spec.lr.noise_scale == scale
    for branch in study.branches(study.batches(Estimate())[0], "folder"):
        batch = branch.spec.plan.global_batch
        assert branch.spec.lr.peak * (1 + scale / batch) == pytest.approx(0.05)
    assert study.marks == (512, 1024, 2048)


def test_the_space_that_is_scaled_needs_only_the_workers_that_there_are() -> None:
    path = SPACES / "digits_scaling.yaml"
    found = as_scaling(load_spec(path), file=str(path))
    plan = ScalingPlan(spec=found.spec, metric_modes={"loss": "min"}, train_samples=1437)
    assert found.spec.cluster.workers == 2
    assert plan.workers[-1] == 8
    assert {run.spec.updates * run.spec.plan.global_batch for run in plan.runs()} == {found.spec.budget.samples}
    assert {run.spec.lr.peak / run.spec.plan.global_batch for run in plan.runs()} == {0.02 / 16}


def test_there_is_one_space_for_each_task_and_studies_beside_them() -> None:
    assert sorted(path.stem for path in SPACES.glob("*.yaml")) == sorted([*NAMES, *STUDIES, *BRANCHES, *SCALED])


def test_quadratic_target_is_a_tenth_of_the_initial_loss_and_every_batch_can_reach_it(load) -> None:
    spec, _ = load("quadratic")
    start = quadratic.exact_expected_loss(lr=1.0, global_batch=1, updates=0)
    assert spec.objective.target == pytest.approx(start / 10, rel=1e-5)
    rates = [0.05 * 1.1**i for i in range(39)]
    assert rates[0] == spec.space["lr.base"].low < rates[-1] < spec.space["lr.base"].high
    for batch in spec.space["batch.global"].values():
        updates = spec.budget.samples // batch
        best = min(quadratic.exact_expected_loss(lr=lr, global_batch=batch, updates=updates) for lr in rates)
        assert best < 0.9 * spec.objective.target


def test_regression_space_states_the_tasks_noise_scale_and_every_batch_can_reach_the_target(load) -> None:
    spec, task = load("regression")
    dim = task.config.dim
    assert spec.lr.noise_scale == dim + 1
    for batch in spec.space["batch.global"].values():
        trial = resolve_trial(
            spec, {"batch.global": batch, "lr.rule": "noise", "lr.base": 0.5}, metric_modes=task.metric_modes
        )
        assert trial.lr.peak == pytest.approx(1 / (1 + (dim + 1) / batch))
        loss = regression.exact_expected_loss(lr=trial.lr.peak, global_batch=batch, updates=trial.updates, dim=dim)
        assert loss < spec.objective.target / 2
