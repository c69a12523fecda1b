"""Secrets planted wherever a user may give one, and looked for wherever a sweep leaves anything."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow_server import Server
from sweeps import events_of, study_of, summary_of, write_space

from orchestrator.config.load import masked_keys

TESTS = Path(__file__).resolve().parents[1]
VARIABLES = (
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "RAY_AUTH_TOKEN",
)


class Planted:
    """Random secrets by the place where each was planted."""

    def __init__(self) -> None:
        self.by_place: dict[str, str] = {}

    def __call__(self, place: str) -> str:
        # Characters that an AWS key has and that a URI keeps; long enough to be found in no other text.
        return self.by_place.setdefault(place, secrets.token_hex(12) + "+x" + secrets.token_hex(6))

    def found_in(self, data: bytes) -> list[str]:
        """Places whose secret is in `data`, or either end of it: the middle is written differently in addresses."""
        ends = {place: secret.encode().split(b"+x") for place, secret in self.by_place.items()}
        return [place for place, parts in ends.items() if any(part in data for part in parts)]


def environment(planted: Planted) -> dict[str, str]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))}
    return {
        **outside,
        **{name: planted(name) for name in VARIABLES},
        "MLFLOW_TRACKING_USERNAME": "me",
        "ALL_PROXY": f"http://me:{planted('ALL_PROXY')}@127.0.0.1:9",
        "NO_PROXY": "127.0.0.1,localhost",
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS / "e2e")]),
        "OMP_NUM_THREADS": "1",
    }


def sweep(planted: Planted, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator.sweep", str(folder / "space.yaml"), *arguments],
        cwd=folder,
        env=environment(planted),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def address(planted: Planted, name: str) -> str:
    return f"s3://AKIA{name}:{planted(name)}@bucket/{name}.parquet"


def plant(planted: Planted, folder: Path, tracking_uri: str) -> None:
    """A space with two addresses to read from, one of which breaks, and a third that nothing varies."""
    write_space(
        folder,
        {"task.source": [address(planted, "whole"), address(planted, "broken")]},
        task={"name": "leaky:Leaky", "marker": address(planted, "marker")},
        search={"trials": 2},
        tracking={"uri": tracking_uri},
    )


@pytest.fixture
def own_server(server: Server, tmp_path: Path) -> Iterator[Server]:
    """A server whose files hold nothing else."""
    own = Server(tmp_path / "server")
    (tmp_path / "server").mkdir()
    shutil.copy(server.fresh_database, own.database.path)
    own.start()
    yield own
    own.stop()


def test_no_secret_is_left_anywhere(own_server: Server, tmp_path: Path) -> None:
    planted = Planted()
    (tmp_path / "project").mkdir()
    run = tmp_path / "project" / "run"
    plant(planted, run.parent, own_server.uri.replace("http://", f"http://me:{planted('tracking.uri')}@"))
    done = sweep(planted, run.parent, "--out", str(run))
    assert done.returncode == 0, done.stdout + done.stderr
    summary = summary_of(run)
    assert sorted(trial["status"] for trial in summary["trials"]) == ["completed", "failed"]
    assert not [warning for warning in summary["warnings"] if "MLflow" in warning]
    (failed,) = [event for event in events_of(run, "trial_ended") if event["status"] == "failed"]
    assert "cannot read s3://***@bucket/broken.parquet" in failed["reason"]

    assert planted.found_in((done.stdout + done.stderr).encode()) == []
    (run.parent / "space.yaml").unlink()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    expected = {"events.jsonl", "spec.yaml", "study.journal", "ray.log", "mlflow_cursor.json", "server.db", "spec.json"}
    assert expected <= {path.name for path in files}
    leaks = {str(path.relative_to(tmp_path)): planted.found_in(path.read_bytes()) for path in files}
    assert {name: places for name, places in leaks.items() if places} == {}

    # What is left tells which address it was, and asks for it again.
    assert {choice for trial in study_of(run).trials for choice in trial.params.values()} == {
        "s3://***@bucket/whole.parquet",
        "s3://***@bucket/broken.parquet",
    }
    assert set(masked_keys(run / "spec.yaml")) == {"task.marker", "tracking.uri", "space.task.source"}
    again = subprocess.run(
        [sys.executable, "-m", "orchestrator.sync", str(run)],
        cwd=run.parent,
        env=environment(planted),
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 2
    assert "lost its credentials when it was written down" in again.stderr


def test_refusals_and_plans_show_no_secret(tmp_path: Path) -> None:
    planted = Planted()
    plant(planted, tmp_path, f"sqlite:///{tmp_path}/mlflow.db")
    out = f"s3://AKIA:{planted('--out')}@bucket/run?endpoint_override=127.0.0.1:9&scheme=http"
    away = f"http://me:{planted('--set')}@127.0.0.1:9"
    for arguments, code in [
        (("--dry-run", "--out", str(tmp_path / "run")), 0),
        (("--dry-run", "--out", out), 0),
        (("--out", out), 2),
        (("--set", f"tracking.uri={away}"), 2),
        (("--set", f"tracking={away}"), 2),
        (("--set", f"task.nonsense={away}"), 2),
        (("--set", away), 2),
    ]:
        done = sweep(planted, tmp_path, *arguments)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert planted.found_in(said.encode()) == [], said
        assert code == 0 or said.count("\n") == 1
