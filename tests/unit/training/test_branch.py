"""Trials that branch off a checkpoint of another one: the same weights, the next samples, a batch of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from orchestrator.config.trial import LrPlan, OptimizerRef, Start, TaskRef, TrialSpec
from orchestrator.tasks.arrays import TensorRows
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.training.checkpoint import Checkpoints, _entries
from orchestrator.training.group import Solo
from orchestrator.training.loop import run_trial
from orchestrator.training.records import Evaluation, Outcome
from orchestrator.training.task import Task

NEVER_S = 1e9
MOVING = ("samples_per_second", "step_ms", "data_wait_fraction", "peak_memory_bytes", "updates")


class Rows(TensorRows):
    """Rows that note which were trained on."""

    noted: list[int]

    def fetch(self, indices: Any, draws: Any) -> Any:
        if draws is not None:
            self.noted.extend(indices.tolist())
        return super().fetch(indices, draws)


class Small(Task):
    """A small regression with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[int] = []

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))

    def train_data(self) -> Rows:
        x = torch.randn(100, 6, generator=torch.Generator().manual_seed(1))
        rows = Rows(x, x.sum(1, keepdim=True))
        rows.noted = self.noted
        return rows

    val_data = train_data

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return F.mse_loss(model(x), y, reduction="sum"), len(x)


def spec(batch: int = 8, *, budget: int = 160, **changes: Any) -> TrialSpec:
    fields: dict[str, Any] = {
        "task": TaskRef(name="tests:Small"),
        "seed": 5,
        "plan": BatchPlan(global_batch=batch, micro_batch=batch, accumulation=1, world_size=1),
        "lr": LrPlan(base=0.01, rule="none", peak=0.01, reference_batch=8),
        "optimizer": OptimizerRef(name="SGD", options={"momentum": 0.9}),
        "budget_samples": budget,
        "eval_every_samples": 40,
        "precision": "fp64",
    }
    return TrialSpec(**(fields | changes))


def train(trial: TrialSpec, folder: Path, **policy: Any) -> tuple[Outcome, list[Evaluation], list[int]]:
    seen: list[Evaluation] = []
    task = Small()
    kept = Checkpoints(**({"folder": str(folder), "every_s": NEVER_S, "keep_at": trial.keep_at} | policy))
    outcome = run_trial(trial, task, Solo(), lambda evaluation: seen.append(evaluation) or False, checkpoints=kept)
    return outcome, seen, task.noted


def without_times(evaluation: Evaluation) -> dict[str, float]:
    return {name: value for name, value in evaluation.metrics.items() if name not in MOVING}


@pytest.fixture
def parent(tmp_path: Path) -> tuple[TrialSpec, list[Evaluation], list[int]]:
    trial = spec(keep_at=(48, 80))
    outcome, seen, noted = train(trial, tmp_path / "parent")
    assert outcome.status == "completed"
    return trial, seen, noted


def branch(parent: TrialSpec, tmp_path: Path, at: int = 80, **changes: Any) -> TrialSpec:
    start = Start(folder=str(tmp_path / "parent"), samples_seen=at, trajectory=parent.trajectory)
    return replace(spec(**changes), start=start)


def test_checkpoints_that_are_asked_for_stay_and_are_evaluated(parent, tmp_path):
    trial, seen, _ = parent
    assert [entry.samples_seen for entry in _entries(str(tmp_path / "parent"))] == [48, 80]
    assert [evaluation.samples_seen for evaluation in seen] == [40, 48, 80, 120, 160]
    assert trial.key == replace(trial, keep_at=()).key, "where checkpoints lie decides nothing"


def test_a_branch_that_changes_nothing_is_the_parent_itself(parent, tmp_path):
    trial, seen, noted = parent
    outcome, again, ids = train(branch(trial, tmp_path), tmp_path / "branch")
    assert (outcome.status, outcome.updates, outcome.resumed_from) == ("completed", 10, None)
    assert [evaluation.samples_seen for evaluation in again] == [80, 120, 160]
    assert again[0].metrics["val/loss"] == seen[2].metrics["val/loss"]
    assert [without_times(one) for one in again[1:]] == [without_times(one) for one in seen[3:]]
    assert ids == noted[80:]


def test_a_branch_at_another_batch_goes_on_with_the_next_samples(parent, tmp_path):
    trial, seen, noted = parent
    other = branch(trial, tmp_path, at=48, batch=16, budget=48 + 96, lr=replace(trial.lr, peak=0.02))
    outcome, again, ids = train(other, tmp_path / "branch")
    assert (outcome.status, outcome.updates, other.updates) == ("completed", 6, 6)
    assert again[0].metrics["val/loss"] == seen[1].metrics["val/loss"]
    assert again[-1].metrics["lr"] == 0.02
    assert ids == noted[48:144]
    # and under another seed with others
    assert train(replace(other, seed=6), tmp_path / "other")[2] != ids


def test_a_branch_that_was_cut_goes_on_from_its_own_checkpoint(parent, tmp_path):
    trial, *_ = parent
    whole = train(branch(trial, tmp_path), tmp_path / "whole")[1]
    stops = iter([False] * 4)
    short = Checkpoints(folder=str(tmp_path / "cut"), every_s=NEVER_S)
    cut = branch(trial, tmp_path)
    stopped = run_trial(
        cut, Small(), Solo(), lambda evaluation: False, stop_requested=lambda: next(stops, True), checkpoints=short
    )
    assert (stopped.status, stopped.samples_seen) == ("stopped", 120)
    outcome, again, _ = train(cut, tmp_path / "cut")
    assert (outcome.resumed_from, outcome.updates) == (120, 10)
    assert without_times(again[-1]) == without_times(whole[-1])


def test_a_branch_keeps_optimizer_state_and_has_options_of_its_own(parent, tmp_path):
    trial, *_ = parent
    fresh = branch(trial, tmp_path, optimizer=OptimizerRef(name="SGD", options={"momentum": 0.0}))
    with_momentum, without = (
        train(one, tmp_path / name)[1][-1].metrics["val/loss"]
        for name, one in (("with", branch(trial, tmp_path)), ("without", fresh))
    )
    assert with_momentum != without


def test_what_cannot_be_branched_off_fails_with_the_reason(parent, tmp_path):
    trial, *_ = parent
    outcome, _, _ = train(branch(trial, tmp_path, at=64), tmp_path / "branch")
    assert outcome.status == "failed"
    assert "holds no checkpoint after 64 samples" in outcome.reason
    stranger = replace(branch(trial, tmp_path), start=replace(branch(trial, tmp_path).start, trajectory="0" * 16))
    assert "the checkpoint is of trial" in train(stranger, tmp_path / "stranger")[0].reason
    spent = train(branch(trial, tmp_path, budget=80), tmp_path / "spent")[0]
    assert "the branch begins at 80" in spent.reason
    assert "must be multiples of the global batch" in train(spec(keep_at=(20,)), tmp_path / "odd")[0].reason


def test_a_branch_is_known_by_where_it_begins_and_not_by_the_folder(parent, tmp_path):
    trial, *_ = parent
    one = branch(trial, tmp_path)
    assert one.key == replace(one, start=replace(one.start, folder="elsewhere")).key
    assert len({one.key, branch(trial, tmp_path, at=48).key, replace(one, start=None).key}) == 3
    assert TrialSpec.from_dict(one.to_dict()) == one
    plain = trial.to_dict()
    del plain["start"], plain["keep_at"]
    assert TrialSpec.from_dict(plain).key == trial.key, "records that are older than branches"
