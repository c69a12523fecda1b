"""Sweeps on a cluster: what people found wrong elsewhere, as far as it shows without starting one.

What needs Ray is held by tests/e2e, what needs Optuna's study by tests/unit/search.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from orchestrator.cluster.capacity import Node, count_gangs
from orchestrator.config.load import spec_from_dict
from orchestrator.config.trial import LrPlan, OptimizerRef, TaskRef, TrialSpec
from orchestrator.errors import ConfigError, ResourceError
from orchestrator.search.objective import Objective
from orchestrator.search.race import Asha, rungs
from orchestrator.tasks.arrays import TensorRows
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.theory.schedules import evaluation_points
from orchestrator.training.group import Solo
from orchestrator.training.loop import run_trial
from orchestrator.training.task import Task


def gangs(cpus: float, workers: int, per_worker: float = 1.0, asked: int | None = None) -> int:
    node = Node(name="head", resources={"CPU": cpus})
    return count_gangs([node], workers=workers, per_worker={"CPU": per_worker}, asked=asked, trials=100)


def test_trials_at_once_follow_from_the_cluster_and_need_no_cpu_of_their_own() -> None:
    # ray-project/ray#14621, #51048: trial drivers took the CPUs that their workers waited for
    assert [gangs(cpus, 2) for cpus in (2, 3, 4, 5, 8)] == [1, 1, 2, 2, 4]
    assert gangs(4, 2, asked=1) == 1


@pytest.mark.parametrize(
    ("cpus", "workers", "per_worker", "asked", "texts"),
    [
        (2, 3, 1.0, None, ["need 3 CPU", "head has 2 CPU"]),
        (1, 2, 1.0, None, ["need 2 CPU", "head has 1 CPU"]),
        (4, 2, 4.0, None, ["need 8 CPU", "head has 4 CPU"]),
        (4, 2, 1.0, 3, ["need 6 CPU", "head has 4 CPU", "cluster.gangs: 2"]),
    ],
)
def test_a_shape_that_can_never_start_is_refused_naming_need_and_supply(
    cpus, workers, per_worker, asked, texts
) -> None:
    with pytest.raises(ResourceError) as caught:
        gangs(cpus, workers, per_worker, asked)
    assert caught.value.exit_code == 2
    assert all(text in str(caught.value) for text in texts), str(caught.value)


@pytest.mark.parametrize(
    "form",
    [
        {"if": "batch.global == 16", "then": [0, 10], "else": [0, 20]},
        {"when": {"batch.global": 16}, "choices": ["1%", "2%"]},
        [{"low": 0, "high": "10%"}, {"low": 0, "high": "20%"}],
        {16: ["0%", "10%"], 32: ["0%", "20%"]},
    ],
)
def test_a_space_that_depends_on_another_parameter_is_refused(form: Any) -> None:
    # optuna/optuna#2564, ray-project/ray#18587: "does not support dynamic value space", in the middle of a sweep
    with pytest.raises(ConfigError) as caught:
        spec_from_dict({"task": {"name": "digits"}, "space": {"batch.global": [16, 32], "lr.warmup": form}})
    assert str(caught.value.key).startswith("space.lr.warmup")
    assert caught.value.exit_code == 2
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("section", "key", "nearest"),
    [
        ("search", "early_stoping", "search.early_stopping"),
        ("search", "lowest_rungs", "search.lowest_rung"),
        ("search", "reducton", "search.reduction"),
        ("search", "time_attr", ""),
        ("budget", "sample", "budget.samples"),
        ("budget", "eval_evry", "budget.eval_every"),
    ],
)
def test_a_misspelt_key_of_early_stopping_is_an_error_and_never_silence(section: str, key: str, nearest: str) -> None:
    # ray-project/ray#44256: with a wrong time_attr nothing is ever stopped
    with pytest.raises(ConfigError) as caught:
        spec_from_dict({"task": {"name": "digits"}, section: {key: 3}})
    assert caught.value.key == f"{section}.{key}"
    assert nearest in caught.value.remedy


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.sampled_from([16, 64, 100, 512, 4096]), min_size=2, max_size=4, unique=True),
    every=st.integers(50, 5000),
    reduction=st.integers(2, 4),
    mode=st.sampled_from(["min", "max"]),
)
def test_each_rung_compares_trials_of_every_batch_size(batches, every, reduction, mode) -> None:
    # syne-tune/syne-tune#769: a batch of 4096 first reports after 4096 samples and skipped the rung at 1000
    budget = 60 * max(every, max(batches))
    marks = rungs(lowest_samples=max(batches), budget_samples=budget, eval_every_samples=every, reduction=reduction)
    points = {batch: evaluation_points(batch, budget, every) for batch in batches}
    for rung in marks:
        asha = Asha(rungs=[rung], reduction=reduction, mode=mode)
        good, bad = (1.0, 9.0) if mode == "min" else (9.0, 1.0)
        for number in range(reduction + len(batches)):
            batch = batches[number % len(batches)]
            for samples in points[batch]:
                assert not asha.stops(f"good{number}", samples, good)
        for batch in batches:
            at = next(samples for samples in points[batch] if asha.stops(f"bad{batch}", samples, bad))
            assert at == next(samples for samples in points[batch] if samples >= rung)


class Scripted(Task):
    """Every sample has the same loss, which nothing changes."""

    def __init__(self, value: float, where: str) -> None:
        super().__init__()
        self.value, self.where = value, where

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def train_data(self) -> TensorRows:
        return TensorRows(torch.zeros(8, 1))

    val_data = train_data

    def loss(self, model: nn.Module, batch: Any) -> Any:
        value = self.value if self.where == "train" else 1.0
        return 0.0 * model(batch[0]).sum() + value * len(batch[0]), len(batch[0])

    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        return {"loss": (self.value * len(batch[0]), len(batch[0]))}


@pytest.mark.parametrize("where", ["train", "val"])
def test_of_losses_that_are_not_finite_none_wins(where: str) -> None:
    # ray-project/ray#6659, #11670: a NaN trial is never stopped, and +inf is accepted
    objective = Objective(kind="best_metric", metric="val/loss", mode="min")
    split = BatchPlan(global_batch=4, micro_batch=4, accumulation=1, world_size=1)
    trial = TrialSpec(
        task=TaskRef(name="here:Scripted"),
        seed=0,
        plan=split,
        lr=LrPlan(base=0.1, rule="none", peak=0.1, reference_batch=4),
        optimizer=OptimizerRef(name="SGD"),
        budget_samples=40,
        eval_every_samples=8,
    )
    scores = {}
    for value in (1.0, math.nan, 0.5, math.inf, -math.inf):
        seen: list[dict[str, Any]] = []
        outcome = run_trial(trial, Scripted(value, where), Solo(), lambda e, seen=seen: seen.append(vars(e)) or False)
        assert outcome.status == ("completed" if math.isfinite(value) else "diverged")
        assert outcome.samples_seen <= 8 or math.isfinite(value), "a diverged trial ends at once"
        assert all(math.isfinite(number) for e in seen for number in e["metrics"].values())
        scores[value] = objective.score(seen, outcome.to_dict())
    assert scores[1.0] == 1.0
    assert [score for score in scores.values() if score is not None] == [1.0, 0.5]


@pytest.mark.parametrize(
    "data",
    [np.zeros(25_000_000), torch.zeros(4), list(range(100_000)), "x" * 300_000, {str(i): i for i in range(50_000)}],
    ids=["200 MB array", "tensor", "list", "text", "mapping"],
)
@pytest.mark.parametrize("place", ["task", "space"])
def test_data_in_a_spec_is_refused_with_advice(data: Any, place: str) -> None:
    # ray-project/ray#42590, #28339: a data set as a trial's parameter breaks messages and snapshots
    raw: dict[str, Any] = {"task": {"name": "digits"}}
    if place == "task":
        raw["task"]["rows"] = data
    else:
        raw["space"] = {"task.rows": [data, data]}
    with pytest.raises(ConfigError) as caught:
        spec_from_dict(raw)
    assert "path" in caught.value.remedy
    assert len(str(caught.value)) < 600
