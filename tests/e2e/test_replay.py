"""Runs trained again from their MLflow record alone, in an empty folder."""

from __future__ import annotations

import importlib
import json
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
from mlflow_server import Server
from sweeps import RunSweep, events_of, write_space

from orchestrator import replay
from orchestrator.tracking.comparison import OF_THE_MACHINE

TASK = """
import numpy as np
import torch
from beside_of_replayed import LAYERS
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from orchestrator.training.task import Task, TaskConfig


class Config(TaskConfig):
    path: str
    hidden: int = 8


class Mine(Task):
    Config = Config
    path_options = ("path",)

    def __init__(self, config):
        super().__init__(config)
        rows = torch.from_numpy(np.load(config.path))
        self._data = TensorDataset(rows[:, :-1], rows[:, -1:])

    def model(self):
        hidden = self.config.hidden
        return nn.Sequential(nn.Linear(3, hidden), *[nn.Tanh() for _ in range(LAYERS)], nn.Linear(hidden, 1))

    def train_data(self):
        return self._data

    def val_data(self):
        return self._data

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1], reduction="sum"), len(batch[0])
"""


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with nothing in it."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path / "empty"


class Mine:
    """A finished sweep of a user's own task: the folder of its module, its data, its database, its trial's run."""

    def __init__(self, folder: Path, database: Path, run_id: str) -> None:
        self.folder, self.database, self.run_id = folder, database, run_id
        self.uri = f"sqlite:///{database}"

    def changed(self, into: Path, *statements: str) -> str:
        """The URI of a copy of the database that `statements` have changed."""
        shutil.copy(self.database, into)
        with sqlite3.connect(into) as connection:
            for statement in statements:
                assert connection.execute(statement, (self.run_id,)).rowcount == 1
        connection.close()
        return f"sqlite:///{into}"


@pytest.fixture(scope="module")
def mine(run_sweep: RunSweep, tracking_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mine]:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "replayed_of_tests.py").write_text(TASK)
    (folder / "beside_of_replayed.py").write_text("LAYERS = 1\n")
    rng = np.random.default_rng(0)
    np.save(folder / "data.npy", rng.normal(size=(512, 4)).astype(np.float32))
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    task = {"name": "replayed_of_tests:Mine", "path": str(folder / "data.npy")}
    space = write_space(folder, {"task.hidden": [8, 16]}, task=task, search={"trials": 2}, cluster={"workers": 1})
    summary = run_sweep(space, out=folder / "run")
    database = Path(tracking_uri.removeprefix("sqlite:///"))
    client = mlflow.MlflowClient(tracking_uri)
    trials = client.search_runs(
        [client.get_run(summary["mlflow"]["parent_run_id"]).info.experiment_id], "tags.`orchestrator.trial` = 't0001'"
    )
    ours = [run for run in trials if run.data.tags["mlflow.parentRunId"] == summary["mlflow"]["parent_run_id"]]
    # What stays of the user's folder is its data: the module and what was compiled of it are gone.
    for path in (folder / "replayed_of_tests.py", folder / "beside_of_replayed.py"):
        path.unlink()
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    for name in ("replayed_of_tests", "beside_of_replayed"):
        sys.modules.pop(name, None)
    yield Mine(folder, database, ours[0].info.run_id)
    sys.path.remove(str(folder))


def run_of(server: Server, run: Path, *, stopped_by: str | None) -> tuple[str, list[dict[str, Any]]]:
    """The MLflow run and the evaluations of the sweep's first trial that ended so."""
    ended = next(event for event in events_of(run, "trial_ended") if event["stopped_by"] == stopped_by)
    client = mlflow.MlflowClient(server.uri)
    parent = client.get_run(json.loads((run / "summary.json").read_text())["mlflow"]["parent_run_id"])
    where = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}' AND tags.`orchestrator.trial` = '{ended['trial']}'"
    (child,) = client.search_runs([parent.info.experiment_id], where)
    return child.info.run_id, [e for e in events_of(run, "evaluation") if e["trial"] == ended["trial"]]


@pytest.mark.parametrize("stopped_by", [None, "asha"])
def test_a_digits_run_is_identical(
    digits: Path, server: Server, empty: Path, tmp_path: Path, stopped_by: str | None, capsys: Any
) -> None:
    run_id, evaluations = run_of(server, digits, stopped_by=stopped_by)
    out = tmp_path / "out"
    assert replay.main([run_id, "--tracking-uri", server.uri, "--strict", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == str(out)
    assert lines[-2].startswith(f"identical: {len(evaluations)} evaluations, ")
    assert ("compared up to its last evaluation" in "\n".join(lines)) == (stopped_by is not None)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["run_id"], summary["holds"], summary["differences"]) == (run_id, True, [])
    # Every metric of every evaluation but speed and memory, the first norms, and the noise estimate of a whole run.
    at_least = sum(len(set(e["metrics"]) - set(OF_THE_MACHINE)) for e in evaluations)
    assert summary["values"] >= at_least > 4 * len(evaluations)
    assert list(empty.iterdir()) == []


def test_a_task_whose_module_is_gone_comes_from_the_record(mine: Mine, empty: Path, capsys: Any) -> None:
    assert replay.main([mine.run_id, "--tracking-uri", mine.uri]) == 0
    said = capsys.readouterr().out
    assert "the recorded source" in said
    assert "none is installed here" in said
    assert "identical: 4 evaluations" in said
    assert list(empty.iterdir()) == []


def test_a_wrong_value_is_found_and_another_version_of_the_module_is_listed_and_not_used(
    mine: Mine, empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """One value of the record is tampered with; with the newer module, which leads the path, all would differ."""
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "replayed_of_tests.py").write_text(TASK.replace("nn.Tanh", "nn.ReLU"))
    (tmp_path / "newer" / "beside_of_replayed.py").write_text("LAYERS = 2\n")
    monkeypatch.syspath_prepend(tmp_path / "newer")
    wrong = "UPDATE metrics SET value = value * 1.001 WHERE key = 'val/loss' AND step = 256 AND run_uuid = ?"
    uri = mine.changed(tmp_path / "wrong.db", wrong)
    assert replay.main([mine.run_id, "--tracking-uri", uri, "--out", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().out
    assert "the one installed here is another" in said
    assert "not identical: largest relative difference 0.000999, val/loss at 256 samples, 1 of " in said
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["holds"], summary["differing"]) == (False, 1)
    assert (summary["largest"]["metric"], summary["largest"]["at_samples"]) == ("val/loss", 256)


def test_other_data_are_another_run(mine: Mine, empty: Path, tmp_path: Path, capsys: Any) -> None:
    np.save(tmp_path / "other.npy", np.zeros((512, 4), np.float32))
    other = f"task.path={tmp_path / 'other.npy'}"
    assert replay.main([mine.run_id, "--tracking-uri", mine.uri, "--set", other]) == 2
    assert "must be those that the run was trained on" in capsys.readouterr().err


def test_strict_refuses_what_is_not_as_recorded(mine: Mine, empty: Path, tmp_path: Path, capsys: Any) -> None:
    older = "UPDATE params SET value = '1.0.0' WHERE key = 'software/torch' AND run_uuid = ?"
    uri = mine.changed(tmp_path / "older.db", older)
    assert replay.main([mine.run_id, "--tracking-uri", uri, "--strict"]) == 2
    said = capsys.readouterr()
    assert "not as recorded: software/torch was 1.0.0, and is " in said.out
    assert "with --strict everything must be as recorded" in said.err
