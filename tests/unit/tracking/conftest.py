"""Fixtures of the tracking tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tracking_project import Project
from tracking_samples import Sweep

from orchestrator.tracking.events import EventLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog(tmp_path / "run" / "events.jsonl") as opened:
        yield opened


@pytest.fixture
def sweep(log: EventLog) -> Sweep:
    return Sweep(log)


@pytest.fixture(scope="session")
def fresh_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database; making its schema takes seconds, so tests copy this one."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("schema") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def project(tmp_path: Path, fresh_database: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr("orchestrator.tracking.patience.FIRST_PAUSE_S", 0.01)
    shutil.copy(fresh_database, tmp_path / "mlflow.db")
    return Project(tmp_path / "mlflow.db")
