"""MLflow: what people found wrong elsewhere, through our log and writer into a real database."""

from __future__ import annotations

import math
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tracking_project import Project
from tracking_samples import Sweep

from orchestrator.tracking.events import EventLog, read_events
from orchestrator.tracking.params import shortened

MLFLOW_CUTS_AT = 6000


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without runs; making its schema takes seconds."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("cases") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def project(tmp_path: Path, empty_database: Path) -> Project:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return Project(tmp_path / "mlflow.db")


def test_many_trials_of_sweeps_that_run_at_the_same_time_lose_no_point(project: Project, tmp_path: Path) -> None:
    # mlflow/mlflow#6490, #20014: "database is locked" with many processes on one SQLite file.
    # Eight trials of two sweeps each tell 200 points, from a thread of their own, while both writers follow.
    logs = [EventLog(tmp_path / name / "events.jsonl") for name in ("one", "two")]
    sweeps = [Sweep(log) for log in logs]
    sent: list[bool] = []
    for number, sweep in enumerate(sweeps):
        sweep.start(name=f"sweep {number}")

    def tell(sweep: Sweep, number: int) -> None:
        trial = sweep.trial(number)
        for point in range(200):
            sweep.log.append(
                "evaluation",
                trial=trial,
                samples_seen=64 * (point + 1),
                updates=point + 1,
                metrics={"val/loss": 1.0 / (point + 1)},
                train_seconds=0.1 * point,
            )
        sweep.end(trial)

    threads = [threading.Thread(target=tell, args=(sweep, number)) for sweep in sweeps for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writers = [threading.Thread(target=lambda log=log: sent.append(project.send(log.path))) for log in logs]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for log in logs:
        log.close()
    assert sent == [True, True]
    rows = project.rows("SELECT run_uuid, step FROM metrics WHERE key = 'val/loss'")
    assert len(rows) == len(set(rows)) == 3200
    assert set(Counter(run for run, _ in rows).values()) == {200}


@settings(max_examples=100, deadline=None)
@given(length=st.integers(MLFLOW_CUTS_AT + 1, 20_000), at=st.integers(0, 19_999), letters=st.permutations("abc"))
def test_values_that_differ_anywhere_are_told_apart_and_never_cut(length: int, at: int, letters: list[str]) -> None:
    # microsoft/qlib#1317, mlflow/mlflow#9709: two settings that differ only at character 6500 became equal
    text = letters[0] * length
    at = at % length
    other = text[:at] + letters[1] + text[at + 1 :]
    assert shortened(text) != shortened(other)
    assert shortened(text) == shortened(letters[0] * length)
    assert max(len(shortened(text)), len(shortened(other))) <= MLFLOW_CUTS_AT


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["metrics", "value", "noise"])
def test_a_number_that_is_not_finite_never_reaches_the_log(place: str, bad: float, tmp_path: Path) -> None:
    # mlflow/mlflow#1573: +inf is stored as 1.797e308
    with EventLog(tmp_path / "events.jsonl") as log:
        sweep = Sweep(log)
        sweep.start()
        trial = sweep.trial(0)
        before = log.path.read_bytes()
        tell = {
            "metrics": lambda: sweep.evaluate(trial, 1, **{"val/perplexity": bad}),
            "value": lambda: sweep.end(trial, value=bad),
            "noise": lambda: sweep.end(trial, outcome={"noise": {"value": bad}}),
        }
        with pytest.raises(ValueError, match="finite"):
            tell[place]()
        assert log.path.read_bytes() == before
        sweep.end(trial)
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")][-1] == "trial_ended"
