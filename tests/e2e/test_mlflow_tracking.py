from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow_server import Database, Server, free_port, wait_until
from tracking_samples import Sweep

from orchestrator import sync
from orchestrator.tracking.cursor import cursor_path, load_cursor
from orchestrator.tracking.events import EventLog, read_events
from orchestrator.tracking.tracker import Tracker
from orchestrator.tracking.uri import check_uri

TESTS = Path(__file__).resolve().parents[1]


def test_a_writer_that_is_killed_midway_loses_and_doubles_nothing(tmp_path: Path) -> None:
    # mlflow/mlflow#6490, #20014: 16 writers x 200 metrics into a fresh database must be 3,200 rows and no error.
    with EventLog(tmp_path / "run" / "events.jsonl") as log:
        sweep = Sweep(log)
        tracker = Tracker(log, uri=check_uri("sqlite:///mlflow.db", tmp_path), experiment="digits")
        first = tracker.pid
        sweep.start()
        trials = [sweep.trial(number) for number in range(16)]
        for step in range(1, 201):
            for trial in trials:
                log.append(
                    "evaluation",
                    trial=trial,
                    samples_seen=64 * step,
                    updates=step,
                    metrics={"val/loss": 1 / step},
                    train_seconds=0.1 * step,
                )
            if step == 80:
                wait_until("the first points", lambda: load_cursor(cursor_path(log.path)).offset)
                os.kill(first, signal.SIGKILL)
        wait_until("a new writer", lambda: tracker.pid != first)
        for trial in trials:
            sweep.end(trial)
        log.append("sweep_ended", status="done")
        left = tracker.close(timeout_s=90)
    assert left.nothing, str(left)
    database = Database(tmp_path / "mlflow.db")
    assert database.rows("SELECT count(*) FROM metrics WHERE key = 'val/loss'") == [(3200,)]
    for trial in trials:
        assert database.steps(trial, "val/loss") == [64 * step for step in range(1, 201)]
    assert database.statuses() == {**dict.fromkeys(trials, "FINISHED"), "sweep": "FINISHED"}
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow.db", "mlartifacts", "run"}
    assert (tmp_path / "run" / "mlflow_writer.log").read_text() == ""


def test_points_made_while_the_server_is_away_arrive_in_order(server: Server, tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        sweep = Sweep(log)
        tracker = Tracker(log, uri=check_uri(server.uri, tmp_path), experiment="away")
        sweep.start(name="away")
        trial = sweep.trial(0)
        sweep.evaluate(trial, 5)
        wait_until("the first points", lambda: not tracker.left().events)
        parent = tracker.parent_run_id
        server.stop()
        sweep.evaluate(trial, 45, first=6)
        second = sweep.trial(1)
        problem = wait_until("the writer to notice", lambda: tracker.problem)
        assert "127.0.0.1" in problem
        assert tracker.left().events == 46
        sweep.evaluate(second, 3)
        server.start()
        wait_until("the writer to go on", lambda: tracker.problem is None)
        for ended in (trial, second):
            sweep.end(ended)
        log.append("sweep_ended", status="done")
        left = tracker.close(timeout_s=60)
    assert left.nothing, str(left)
    assert tracker.parent_run_id == parent
    here = "SELECT count(*) FROM runs r JOIN experiments e USING (experiment_id) WHERE e.name = 'away'"
    assert server.database.rows(here) == [(3,)]
    ours = "SELECT m.step FROM metrics m JOIN tags t USING (run_uuid) WHERE t.key = 'orchestrator.sweep_id' "
    ours += "AND t.value = ? AND m.key = 'val/loss' ORDER BY m.rowid"
    steps = [step for (step,) in server.database.rows(ours, load_cursor(cursor_path(log.path)).sweep_id)]
    evaluations = [event for event in read_events(log.path) if event["event"] == "evaluation"]
    assert len(evaluations) == 53
    assert steps == [event["samples_seen"] for event in evaluations]


def test_a_server_that_never_answers_costs_the_timeout_and_sync_sends_the_rest(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with EventLog(tmp_path / "run" / "events.jsonl") as log:
        sweep = Sweep(log)
        tracker = Tracker(log, uri=f"http://me:secret@127.0.0.1:{free_port()}", experiment="unused")
        sweep.start(name="late")
        sweep.whole_trial(0)
        log.append("sweep_ended", status="done")
        wait_until("the writer to notice", lambda: tracker.problem)
        left = tracker.close(timeout_s=1)
        assert left == tracker.close(timeout_s=1)
    assert left.events == len(read_events(log.path)) == 9
    assert not left.nothing
    assert "the last 9 events (a look for runs left open: MlflowException" in str(left)
    assert f"python -m orchestrator.sync {tmp_path / 'run'}" in str(left)
    for file in (tmp_path / "run").iterdir():
        assert "secret" not in file.read_text()

    assert sync.main([str(tmp_path / "run"), "--uri", server.uri]) == 0
    assert capsys.readouterr().out == "MLflow has everything\n"
    query = "SELECT r.status FROM runs r JOIN experiments e USING (experiment_id) WHERE e.name = 'late'"
    assert server.database.rows(query) == [("FINISHED",)] * 2


def test_the_writer_outlives_a_driver_that_is_killed_and_closes_its_runs(server: Server, tmp_path: Path) -> None:
    database = Database(tmp_path / "mlflow.db")
    shutil.copy(server.fresh_database, database.path)
    driver = (
        "import os, signal, sys\n"
        f"sys.path[:0] = [{str(TESTS / 'unit' / 'tracking')!r}]\n"
        "from pathlib import Path\n"
        "from tracking_samples import Sweep\n"
        "from orchestrator.tracking.events import EventLog\n"
        "from orchestrator.tracking.tracker import Tracker\n"
        "log = EventLog('run/events.jsonl')\n"
        "tracker = Tracker(log, uri=f'sqlite:///{Path.cwd()}/mlflow.db', experiment='digits')\n"
        "sweep = Sweep(log)\n"
        "sweep.start(); sweep.whole_trial(0); sweep.evaluate(sweep.trial(1), 4)\n"
        "print(tracker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    done = subprocess.run([sys.executable, "-c", driver], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_until("the writer to end", lambda: not Path(f"/proc/{int(done.stdout)}").exists())
    assert database.statuses() == {"t0000": "FINISHED", "t0001": "KILLED", "sweep": "KILLED"}
    assert database.steps("t0001", "val/loss") == [2016, 4000, 6016, 8000]
