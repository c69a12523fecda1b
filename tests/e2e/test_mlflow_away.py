"""A real MLflow server that goes away in the middle of a real sweep, for a while or for good."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from mlflow_server import Server, wait_until
from sweeps import RunSweep, events_of, write_space

from orchestrator import experiment, sync
from orchestrator.tracking.cursor import cursor_path, load_cursor

TRIALS, EVALUATIONS = 6, 60
Point = tuple[str, str, int]


def points_on_disk(run: Path) -> list[Point]:
    """Trial key, metric and samples seen of every value in evaluations.parquet."""
    table = pq.read_table(run / "evaluations.parquet")
    names = [name for name in table.column_names if name not in ("trial", "key", "samples_seen", "at")]
    rows = table.to_pylist()
    return [(row["key"], name, row["samples_seen"]) for row in rows for name in names if row[name] is not None]


def points_in_mlflow(server: Server, run: Path) -> list[Point]:
    """The same, of every point of the sweep's trials."""
    query = (
        "SELECT k.value, m.key, m.step FROM metrics m JOIN tags s USING (run_uuid) JOIN tags k USING (run_uuid) "
        "WHERE s.key = 'orchestrator.sweep_id' AND s.value = ? AND k.key = 'orchestrator.trial_key'"
    )
    found = server.database.rows(query, load_cursor(cursor_path(run / "events.jsonl")).sweep_id)
    return [(str(key), str(name), int(step)) for key, name, step in found]


def assert_whole(server: Server, run: Path, experiment_name: str) -> None:
    """MLflow has every point of the sweep once, one run a trial and one for the sweep, and nothing else."""
    expected, found = Counter(points_on_disk(run)), Counter(points_in_mlflow(server, run))
    assert max(found.values()) == 1, [point for point, count in found.items() if count > 1]
    metrics = {name for _, name, _ in expected}
    at_ends = {name for _, name, _ in found} - metrics
    assert {point for point in found if point[1] not in at_ends} == set(expected)
    assert at_ends <= {"value", "turnaround_s", "skipped_updates", "early_grad_norm"} | {
        name for name in at_ends if name.startswith("noise/")
    }
    query = "SELECT r.status FROM runs r JOIN experiments e USING (experiment_id) WHERE e.name = ?"
    statuses = [status for (status,) in server.database.rows(query, experiment_name)]
    assert statuses == ["FINISHED"] * (1 + len(events_of(run, "trial_started")))


class Outage(threading.Thread):
    """Stops the server once five evaluations of a sweep have arrived, and starts it again 20 later, or never."""

    def __init__(self, server: Server, folder: Path, *, for_good: bool) -> None:
        super().__init__()
        self.run_dir, self.gate = folder / "run", folder / "gate"
        self._server, self._for_good = server, for_good
        self.failure: BaseException | None = None

    def evaluations(self) -> int:
        log = self.run_dir / "events.jsonl"
        return log.read_text().count('"event":"evaluation"') if log.exists() else 0

    def sent(self) -> bool:
        log = self.run_dir / "events.jsonl"
        return load_cursor(cursor_path(log)).offset == log.stat().st_size

    def run(self) -> None:
        try:
            wait_until("the sweep to be under way", lambda: self.evaluations() >= 5)
            self.gate.touch()
            wait_until("the first points", self.sent)
            self._server.stop()
            there = self.evaluations()
            self.gate.unlink()
            if not self._for_good:
                wait_until("more evaluations", lambda: self.evaluations() >= there + 20)
                self._server.start()
        except BaseException as error:  # noqa: BLE001  told to the test, whose thread this is not
            self.failure = error
        finally:
            self.gate.unlink(missing_ok=True)


def sweep_through(outage: Outage, run_sweep: RunSweep, server: Server, name: str) -> dict[str, Any]:
    """A sweep of six trials with ten evaluations each while the server is away; its summary."""
    space = write_space(
        outage.run_dir.parent,
        {"task.scene": ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6"]},
        task={"name": "gated:Gated", "gate": str(outage.gate)},
        budget={"samples": 1280, "eval_every": 128},
        search={"trials": TRIALS},
        tracking={"uri": server.uri, "experiment": name},
    )
    outage.start()
    summary = run_sweep(space, f"tracking.uri={server.uri}", out=outage.run_dir)
    outage.join()
    assert outage.failure is None, outage.failure
    assert summary["status"] == "done"
    assert len(events_of(outage.run_dir, "evaluation")) == EVALUATIONS
    return summary


@pytest.fixture
def stopped_server(server: Server) -> Iterator[Server]:
    """The session's server, for a test that stops it."""
    yield server
    if not server.running:
        server.start()


def test_a_server_that_is_away_for_a_while_gets_everything(
    stopped_server: Server, run_sweep: RunSweep, tmp_path: Path
) -> None:
    # radixark/miles#2571: a tracking server that was down for an hour killed the training.
    outage = Outage(stopped_server, tmp_path, for_good=False)
    summary = sweep_through(outage, run_sweep, stopped_server, "away-for-a-while")
    assert not [warning for warning in summary["warnings"] if "MLflow" in warning]
    assert_whole(stopped_server, outage.run_dir, "away-for-a-while")


def test_a_server_that_never_comes_back_costs_nothing_and_gets_the_rest_from_sync(
    stopped_server: Server,
    run_sweep: RunSweep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(experiment, "DRAIN_TIMEOUT_S", 3.0)
    outage = Outage(stopped_server, tmp_path, for_good=True)
    summary = sweep_through(outage, run_sweep, stopped_server, "away-for-good")
    run = outage.run_dir
    assert summary["best"]["value"] == pytest.approx(0.1)
    (warning,) = [warning for warning in summary["warnings"] if "MLflow" in warning]
    assert f"they are safe in {run / 'events.jsonl'}, and `python -m orchestrator.sync {run}` sends them" in warning

    capsys.readouterr()
    assert sync.main([str(run)]) == 2
    assert "the server must answer" in capsys.readouterr().err
    stopped_server.start()
    on_disk = set(points_on_disk(run))
    assert 0 < len(set(points_in_mlflow(stopped_server, run)) & on_disk) < len(on_disk)
    for _ in range(2):  # once more changes nothing
        assert sync.main([str(run)]) == 0
        assert capsys.readouterr().out == "MLflow has everything\n"
        assert_whole(stopped_server, run, "away-for-good")
