"""Sweeps that are cut, taken on, hurried, or left behind, through one writer after another into a real database."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlflow_server import wait_until
from tracking_project import Project
from tracking_samples import Sweep, trial_spec

from orchestrator.tracking import maker
from orchestrator.tracking.cursor import cursor_path, load_cursor, lock_path, save_cursor
from orchestrator.tracking.events import EventLog
from orchestrator.tracking.orders import Orders
from orchestrator.tracking.writer import Job, Writer


def test_a_sweep_that_is_taken_on_goes_on_in_its_runs_and_says_what_changed(project: Project, sweep: Sweep) -> None:
    sweep.start()
    trial = sweep.trial(0)
    sweep.evaluate(trial, 3)
    sweep.interrupt(trial, "rank 1 died", breaks=1)
    sweep.go_on(trial, 4000)
    sweep.log.append("sweep_ended", status="interrupted")
    project.send(sweep.log.path)
    assert {run.info.status for run in project.runs()} == {"KILLED"}
    assert project.trials()[trial].data.tags["reason"] == "the sweep was interrupted"

    # By a second process, which died before the trial was done, and a third, each with a writer of its own.
    sweep.resume(torch=["2.13.0", "2.14.0"])
    sweep.go_on(trial, 4000, micro_batch=4, accumulation=4, world_size=1)
    sweep.evaluate(trial, 1, first=4)
    project.send(sweep.log.path)
    sweep.resume(torch=["2.13.0", "2.14.0"], task_source=["feedfacefeedface", "0123456789abcdef"])
    sweep.go_on(trial, 8000)
    sweep.evaluate(trial, 3, first=4)
    sweep.end(trial)
    project.send(sweep.log.path)
    later = sweep.trial(1)
    sweep.end(later)
    sweep.log.append("sweep_ended", status="done")
    project.send(sweep.log.path)

    run, parent = project.trials()[trial], project.parent()
    assert project.steps(run, "val/loss") == [2000 * step for step in range(1, 7)]
    assert run.info.status == parent.info.status == "FINISHED"
    assert run.data.tags["status"] == "completed"
    assert "reason" not in run.data.tags
    assert run.data.tags["interrupted"] == "1"
    assert run.data.tags["interrupted/reason"] == "rank 1 died"
    assert run.data.tags["continued"] == "3"
    assert run.data.tags["geometry"] == "4 x 4 x 1"
    assert parent.data.tags["status"] == "done"
    assert parent.data.tags["resumed"] == "2"
    assert parent.data.tags["changed/torch"] == "2.13.0 -> 2.14.0"
    params = project.trials()[later].data.params
    assert params["software/torch"] == "2.14.0"
    assert params["task/source_hash"] == "0123456789abcdef"
    assert run.data.params["task/source_hash"] == "feedfacefeedface"


def test_without_time_open_runs_are_closed_before_the_rest_is_sent(
    project: Project, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders()
    writer = Writer(Job(path=str(sweep.log.path), uri=project.uri, experiment="digits"), orders)
    thread = threading.Thread(target=writer.run)
    thread.start()

    def all_sent() -> bool:
        return load_cursor(cursor_path(sweep.log.path)).offset == sweep.log.size_bytes

    sweep.start()
    cut, ended = sweep.trial(0), sweep.trial(1)
    sweep.evaluate(cut, 2)
    wait_until("the first points", all_sent)
    assert {run.info.status for run in project.runs()} == {"RUNNING"}
    monkeypatch.setattr("orchestrator.tracking.orders.HURRY_S", 600.0)
    orders.stop_within(599.0)
    wait_until("open runs to be closed", lambda: {run.info.status for run in project.runs()} == {"KILLED"})
    assert thread.is_alive()

    # What is said after that is added to closed runs, and those that end get their own status.
    sweep.evaluate(ended, 5)
    sweep.end(ended)
    sweep.trial(2)
    sweep.evaluate(cut, 2, first=3)
    wait_until("the rest", all_sent)
    assert {trial: run.info.status for trial, run in project.trials().items()} == {
        cut: "KILLED",
        ended: "FINISHED",
        "t0002": "KILLED",
    }
    sweep.log.append("sweep_ended", status="interrupted")
    orders.complete.set()
    thread.join()
    assert project.parent().info.status == "KILLED"
    assert project.parent().data.tags["status"] == "interrupted"
    runs = project.trials()
    assert runs[cut].data.tags["reason"] == "the sweep was interrupted"
    assert runs[ended].data.tags["status"] == "completed"
    assert "reason" not in runs[ended].data.tags
    assert project.steps(runs[cut], "val/loss") == [2000, 4000, 6000, 8000]


def test_a_writer_that_has_no_time_at_all_sends_nothing_and_loses_nothing(project: Project, sweep: Sweep) -> None:
    sweep.start()
    sweep.whole_trial(0)
    assert project.send(sweep.log.path, within_s=0.0) is False
    assert project.runs() == []
    assert project.send(sweep.log.path)
    assert project.steps(project.trials()["t0000"], "val/loss") == [2000, 4000, 6000, 8000, 10000]


def leave_open(project: Project, folder: Path) -> str:
    """A sweep whose runs read RUNNING: as far as MLflow and its folder tell, its writer was killed on the spot."""
    with EventLog(folder / "events.jsonl") as log:
        sweep = Sweep(log)
        sweep.start(name=folder.name)
        sweep.evaluate(sweep.trial(0), 1)
        sweep.whole_trial(1)
        project.send(log.path)
    sweep_id = load_cursor(cursor_path(log.path)).sweep_id
    assert sweep_id is not None
    for run in project.runs(f"tags.`orchestrator.sweep_id` = '{sweep_id}' and attributes.status = 'KILLED'"):
        project.client.update_run(run.info.run_id, status="RUNNING")
    assert statuses(project, sweep_id) == ["FINISHED", "RUNNING", "RUNNING"]
    return sweep_id


def statuses(project: Project, sweep_id: str) -> list[str]:
    return sorted(run.info.status for run in project.runs(f"tags.`orchestrator.sweep_id` = '{sweep_id}'"))


@contextmanager
def held(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start_another(project: Project, folder: Path) -> None:
    with EventLog(folder / "events.jsonl") as log:
        sweep = Sweep(log)
        sweep.start(name="another")
        sweep.whole_trial(0)
        log.append("sweep_ended", status="done")
        assert project.send(log.path)


def test_the_next_start_closes_what_nobody_keeps(project: Project, tmp_path: Path) -> None:
    left, gone = leave_open(project, tmp_path / "left"), leave_open(project, tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    start_another(project, tmp_path / "another")
    for sweep_id in (left, gone):
        assert statuses(project, sweep_id) == ["FINISHED", "KILLED", "KILLED"]
    (parent,) = project.runs(f"tags.`orchestrator.sweep_id` = '{left}' and tags.`orchestrator.kind` = 'sweep'")
    assert parent.data.tags["reason"] == "its sweep ended without a word; a later start found it"


@pytest.mark.parametrize("kept_by", ["a sweep", "a writer", "another machine"])
def test_the_next_start_leaves_alone_what_somebody_keeps(
    project: Project, tmp_path: Path, kept_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_id = leave_open(project, tmp_path / "left")
    log = tmp_path / "left" / "events.jsonl"
    if kept_by == "another machine":
        monkeypatch.setattr(maker, "host", lambda: "elsewhere")
        start_another(project, tmp_path / "another")
    else:
        with held(log if kept_by == "a sweep" else lock_path(cursor_path(log))):
            start_another(project, tmp_path / "another")
    assert statuses(project, sweep_id) == ["FINISHED", "RUNNING", "RUNNING"]


def test_a_folder_that_was_made_anew_closes_what_it_held_before(project: Project, tmp_path: Path) -> None:
    sweep_id = leave_open(project, tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    start_another(project, tmp_path / "run")
    assert statuses(project, sweep_id) == ["FINISHED", "KILLED", "KILLED"]


def test_what_another_start_closed_is_opened_again_by_whoever_takes_it_on(project: Project, tmp_path: Path) -> None:
    sweep_id = leave_open(project, tmp_path / "left")
    # Its writer was killed before it could note that it had closed anything.
    path = cursor_path(tmp_path / "left" / "events.jsonl")
    cursor = load_cursor(path)
    cursor.parent_open = True
    cursor.runs[cursor.keys["t0000"]].open = True
    save_cursor(path, cursor)
    start_another(project, tmp_path / "another")
    with EventLog(tmp_path / "left" / "events.jsonl") as log:
        sweep = Sweep(log)
        sweep.resume()
        sweep.specs["t0000"] = trial_spec(global_batch=16, peak=0.05)
        sweep.go_on("t0000", 2000)
        orders = Orders()
        writer = Writer(Job(path=str(log.path), uri=project.uri, experiment="digits"), orders)
        thread = threading.Thread(target=writer.run)
        thread.start()
        wait_until("the runs to go on", lambda: statuses(project, sweep_id) == ["FINISHED", "RUNNING", "RUNNING"])
        sweep.evaluate("t0000", 4, first=2)
        sweep.end("t0000")
        log.append("sweep_ended", status="done")
        orders.complete.set()
        thread.join()
    assert statuses(project, sweep_id) == ["FINISHED"] * 3
    run = project.runs(f"tags.`orchestrator.sweep_id` = '{sweep_id}' and tags.`orchestrator.trial` = 't0000'")[0]
    assert project.steps(run, "val/loss") == [2000, 4000, 6000, 8000, 10000]
    assert "reason" not in run.data.tags


def test_a_cursor_that_cannot_be_saved_costs_nothing_but_a_word(
    project: Project, sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    # A folder where the file should be: a full disk and lost permissions refuse in the same place.
    (cursor_path(sweep.log.path) / "taken").mkdir(parents=True)
    lock_path(cursor_path(sweep.log.path)).mkdir()
    sweep.start()
    sweep.whole_trial(0)
    sweep.log.append("sweep_ended", status="done")
    writer = project.writer(sweep.log.path)
    assert writer.run()
    assert writer.unsaved
    assert {run.info.status for run in project.runs()} == {"FINISHED"}
    assert capsys.readouterr().err.count("Goes on without") == 1
    project.send(sweep.log.path)
    assert len(project.runs()) == 2
    assert project.steps(project.trials()["t0000"], "val/loss") == [2000, 4000, 6000, 8000, 10000]


def test_the_host_is_the_same_in_every_process() -> None:
    assert maker.host() == maker.host()
    assert maker.host().startswith(os.uname().nodename)
