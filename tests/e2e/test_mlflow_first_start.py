"""Sweeps that start together on a database that is not there yet."""

from __future__ import annotations

from pathlib import Path

from mlflow_server import Database
from tracking_samples import Sweep

from orchestrator.tracking.events import EventLog
from orchestrator.tracking.tracker import Tracker
from orchestrator.tracking.uri import check_uri


def test_three_first_writers_share_one_whole_database(tmp_path: Path) -> None:
    # mlflow/mlflow#20014: parallel first starts ran the schema's migration twice and broke the file.
    uri = check_uri("sqlite:///mlflow.db", tmp_path)
    logs = [EventLog(tmp_path / name / "events.jsonl") for name in ("a", "b", "c")]
    trackers = []
    for log in logs:
        sweep = Sweep(log)
        trackers.append(Tracker(log, uri=uri, experiment="together"))
        sweep.start(name="together")
        for number in range(2):
            sweep.whole_trial(number)
        log.append("sweep_ended", status="done")
    left = [tracker.close(timeout_s=120) for tracker in trackers]
    assert all(rest.nothing for rest in left), [str(rest) for rest in left]
    database = Database(tmp_path / "mlflow.db")
    assert database.rows("SELECT count(*) FROM runs") == [(9,)]
    assert database.rows("SELECT count(*) FROM experiments WHERE name = 'together'") == [(1,)]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".mlflow")]
    for log in logs:
        log.close()
