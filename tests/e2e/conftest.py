"""What the end-to-end tests share: one MLflow server, and whole sweeps that several tests look at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import Sweep
from mlflow_server import Server
from sweeps import SHORT, RunSweep, write_space


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"))
    running.start()
    shutil.copy(running.database.path, running.fresh_database)
    yield running
    running.stop()


DIGITS = (
    "search.trials=6",
    "search.startup_trials=4",
    "budget.samples=3000",
    "budget.eval_every=1000",
    "search.early_stopping=asha",
    "search.reduction=2",
    "cluster.gangs=1",
)


@pytest.fixture(scope="session")
def digits(run_sweep: RunSweep, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a small digits sweep with early stopping and a repeat, tracked by the server."""
    out = tmp_path_factory.mktemp("digits") / "run"
    repeats = ("search.seeds=2", "search.repeat_top=1")
    run_sweep("digits.yaml", *DIGITS, *repeats, f"tracking.uri={server.uri}", out=out)
    return out


@pytest.fixture(scope="session")
def scripted(run_sweep: RunSweep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep in which everything goes wrong, on a cluster that holds one gang at a time."""
    from scripted import PLACES

    folder = tmp_path_factory.mktemp("scripted")
    scenes = ["1.0", "nan", "0.5", "inf", *PLACES]
    space = write_space(
        folder,
        {"task.scene": scenes},
        task={"marker": str(folder / "died")},
        search={"trials": len(scenes)},
        cluster={"cpus_per_worker": 4.0, "gangs": "auto"},
    )
    run_sweep(space, out=folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """A sweep that nobody disturbs, in a process of its own."""
    undisturbed = Sweep(tmp_path_factory.mktemp("calm") / "sweep", 2, 30.0, **SHORT)
    assert undisturbed.finish() == (0, False), (undisturbed.folder / "output.txt").read_text()
    return undisturbed
