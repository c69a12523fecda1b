"""Sweeps that are stopped or killed with their MLflow writer, and the next start on the same machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from drivers import Driver
from mlflow_server import Database, Server
from tracking_samples import Sweep

from orchestrator import sync
from orchestrator.tracking.events import EventLog
from orchestrator.tracking.tracker import Tracker

UNDER_WAY = """
sweep.start(name=Path(sys.argv[1]).parent.name)
sweep.whole_trial(0)
for number in (1, 2):
    sweep.evaluate(sweep.trial(number), 3)
until_sent()
"""
WAITS = 'print("ready", flush=True)\ntime.sleep(300)\n'


@pytest.fixture
def database(server: Server, tmp_path: Path) -> Database:
    shutil.copy(server.fresh_database, tmp_path / "mlflow.db")
    return Database(tmp_path / "mlflow.db")


@contextmanager
def driver(run_dir: Path, database: Database, code: str) -> Iterator[Driver]:
    running = Driver(run_dir, f"sqlite:///{database.path}", code)
    try:
        assert running.hear() == "ready"
        yield running
    finally:
        if running.wait_or_none() is None:
            running.kill()


def statuses(database: Database, run_dir: Path) -> dict[str, str]:
    """Run status by trial of one run directory's sweep; ``sweep`` is its own."""
    query = (
        "SELECT COALESCE(t.value, 'sweep'), r.status FROM runs r JOIN tags d USING (run_uuid) "
        "LEFT JOIN tags t ON t.run_uuid = r.run_uuid AND t.key = 'orchestrator.trial' "
        "WHERE d.key = 'orchestrator.run_dir' AND d.value = ?"
    )
    return dict(database.rows(query, str(run_dir)))


def test_a_stopped_job_leaves_no_run_open_however_much_is_unsent(database: Database, tmp_path: Path) -> None:
    # `ray job stop`: SIGTERM to driver and writer, SIGKILL 3 s later; a hundred trials are far more than that.
    code = f"""
def stop(number, frame):
    log.append("sweep_ended", status="interrupted")
    tracker.close(2.0)
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
{UNDER_WAY}
for number in range(3, 103):
    sweep.whole_trial(number)
{WAITS}"""
    run = tmp_path / "run"
    with driver(run, database, code) as running:
        running.stop_job()
    early = statuses(database, run)
    assert early["t0000"] == "FINISHED"
    assert {early["t0001"], early["t0002"], early["sweep"]} == {"KILLED"}
    assert len(early) < 104
    assert "RUNNING" not in early.values()

    assert sync.main([str(run), "--uri", f"sqlite:///{database.path}"]) == 0
    whole = statuses(database, run)
    assert whole == {
        **{f"t{number:04d}": "FINISHED" for number in (0, *range(3, 103))},
        **dict.fromkeys(("t0001", "t0002", "sweep"), "KILLED"),
    }
    assert database.rows("SELECT count(*) FROM metrics WHERE key = 'val/loss'") == [(5 + 2 * 3 + 100 * 5,)]


def test_a_tracker_that_has_two_seconds_closes_open_runs_first(database: Database, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code = f"{UNDER_WAY}\nfor number in range(3, 103):\n    sweep.whole_trial(number)\n"
    code += 'left = tracker.close(2.0)\nprint("ready", flush=True)\nprint(left.events, flush=True)\nlog.close()\n'
    with driver(run, database, code) as running:
        assert int(running.hear()) > 0
        assert running.wait() == 0
    found = statuses(database, run)
    assert {found["t0001"], found["t0002"], found["sweep"]} == {"KILLED"}
    assert "RUNNING" not in found.values()


def test_runs_left_open_by_a_kill_are_closed_by_the_next_start(database: Database, tmp_path: Path) -> None:
    killed, gone, alive = tmp_path / "killed", tmp_path / "gone", tmp_path / "alive"
    with driver(alive, database, UNDER_WAY + WAITS):
        # Both are under way before one is killed: the second would find the first.
        with (
            driver(killed, database, UNDER_WAY + WAITS) as first,
            driver(gone, database, UNDER_WAY + WAITS) as second,
        ):
            first.kill()
            second.kill()
        shutil.rmtree(gone)
        under_way = {"t0000": "FINISHED", "t0001": "RUNNING", "t0002": "RUNNING", "sweep": "RUNNING"}
        assert [statuses(database, run) for run in (killed, gone, alive)] == [under_way] * 3

        with EventLog(tmp_path / "next" / "events.jsonl") as log:
            tracker = Tracker(log, uri=f"sqlite:///{database.path}", experiment="digits")
            sweep = Sweep(log)
            sweep.start(name="next")
            sweep.whole_trial(0)
            log.append("sweep_ended", status="done")
            assert tracker.close(60.0).nothing
        closed = {trial: status.replace("RUNNING", "KILLED") for trial, status in under_way.items()}
        assert [statuses(database, run) for run in (killed, gone, alive)] == [closed, closed, under_way]

    # The other one may still be sent, and taken on.
    assert sync.main([str(killed), "--uri", f"sqlite:///{database.path}"]) == 0
    assert statuses(database, killed) == closed


def test_sync_leaves_a_sweep_that_runs_to_its_own_writer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "PATIENCE_S", 0.3)
    with EventLog(tmp_path / "events.jsonl") as log:
        Sweep(log).start()
        assert sync.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: RUN_DIR = '{tmp_path}': the sweep must have ended, and a process still writes its record. "
        "Wait for its end: it sends everything itself, as soon as MLflow answers.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "RUN_DIR = 'nowhere': the folder must hold the record of a sweep, events.jsonl"),
        ([], "the following arguments are required: RUN_DIR"),
        (["a", "b"], "unrecognized arguments: b"),
    ],
)
def test_sync_refuses_in_one_line(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sync.main(arguments) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_a_record_without_a_sweep_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append("gang_started", gang=0, workers=[])
    assert sync.main([str(tmp_path)]) == 2
    assert "must say that a sweep started" in capsys.readouterr().err


def test_files_of_the_writer_that_cannot_be_written_are_told_once_and_cost_nothing(
    database: Database, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for name in ("mlflow_cursor.json", "mlflow_cursor.json.lock", "mlflow_writer.log"):
        (run / name / "taken").mkdir(parents=True)
    with EventLog(run / "events.jsonl") as log:
        tracker = Tracker(log, uri=f"sqlite:///{database.path}", experiment="digits")
        first = tracker.pid
        sweep = Sweep(log)
        sweep.start()
        sweep.whole_trial(0)
        log.append("sweep_ended", status="done")
        left = tracker.close(60.0)
    assert tracker.pid == first
    assert left.delivered
    assert not left.nothing
    assert str(left) == (
        "MLflow has everything. The MLflow writer could not keep its own files "
        f"({run}/mlflow_cursor.json cannot be written)"
    )
    assert statuses(database, run) == {"t0000": "FINISHED", "sweep": "FINISHED"}
