"""Whatever is killed, nothing is lost and nothing doubled: the short form of ``benchmarks/chaos.py``, and its edges."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from chaos import Fault, Sweep, faults_of, histories, strike
from sweeps import SHORT, TRIALS, RunSweep, events_of, study_of, summary_of, write_space


def test_a_light_actor_a_worker_and_the_driver_are_killed(calm: Sweep, tmp_path: Path) -> None:
    cut = Sweep(tmp_path / "sweep", 2, 0.0, **SHORT)
    assert strike(cut, Fault("tune actor", 4, 0.0, 2, 0.0)) == 1
    assert strike(cut, Fault("one rank", 14, 0.0, 2, 0.0)) == 1
    assert strike(cut, Fault("driver", 28, 0.05, 2, 0.0)) == 1
    assert cut.finish() == (0, True), (cut.folder / "output.txt").read_text()
    assert faults_of(cut, histories(calm.events())) == []
    assert len(study_of(cut.out).trials) == TRIALS
    continued = [event for event in cut.events() if event["event"] == "trial_continued"]
    assert any(event["from_samples"] for event in continued), "a checkpoint was made at every evaluation"


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Sweep]:
    """A sweep in the midst of a trial, with loader processes."""
    running = Sweep(tmp_path / "sweep", 2, 30.0, **SHORT, training={"loader": {"workers": 1}})
    running.wait_for(lambda events: sum(event["event"] == "evaluation" for event in events) >= 11)
    yield running
    if running.process.poll() is None:
        running.process.kill()


def test_an_interrupted_sweep_ends_in_order(busy: Sweep) -> None:
    family = busy.family()
    assert any("multiprocessing" in " ".join(process.cmdline()) for process in family if process.is_running())
    os.kill(busy.process.pid, signal.SIGTERM)
    assert busy.process.wait(30) == 130
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    text = (busy.folder / "output.txt").read_text()
    assert f"python -m orchestrator.sweep --resume {busy.out}" in re.sub(r"\s+", " ", text)
    assert summary_of(busy.out)["status"] == "interrupted"
    states = Counter(trial.state.name for trial in study_of(busy.out).trials)
    assert states == Counter(COMPLETE=1, RUNNING=1)
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=busy.uri)
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert Counter(run.info.status for run in runs) == Counter(KILLED=2, FINISHED=1)


def test_a_second_signal_ends_at_once(busy: Sweep) -> None:
    family = busy.family()
    os.kill(busy.process.pid, signal.SIGINT)
    time.sleep(0.2)
    os.kill(busy.process.pid, signal.SIGINT)
    assert busy.process.wait(10) == 130
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive


def test_a_worker_that_hangs_again_and_again_costs_its_trial_alone(run_sweep: RunSweep, tmp_path: Path) -> None:
    space = write_space(
        tmp_path,
        {"task.scene": ["hang", "hang once", "1.0"]},
        task={"marker": str(tmp_path / "marker")},
        cluster={"hang_timeout_s": 3},
    )
    summary = run_sweep(space, out=tmp_path / "run")
    (tmp_path / "marker").unlink(missing_ok=True)
    trials = {trial["params"]["task.scene"]: trial for trial in summary["trials"]}
    assert {scene: trial["status"] for scene, trial in trials.items()} == {
        "hang": "failed", "hang once": "completed", "1.0": "completed",
    }  # fmt: skip
    assert "broke 3 times: rank 1 made no progress for 3 s, at scripted.py" in trials["hang"]["reason"]
    steps = [e["samples_seen"] for e in events_of(tmp_path / "run", "evaluation") if e["trial"] == trials["1.0"]["id"]]
    assert steps == [128, 256, 384, 512]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2M", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_ends_a_sweep_that_goes_on_once_there_is_room(
    small_disk: Path, tmp_path: Path, calm: Sweep
) -> None:
    full = Sweep(tmp_path / "sweep", 2, 30.0, out=small_disk / "run", **SHORT)
    full.wait_for(lambda events: sum(event["event"] == "evaluation" for event in events) >= 12)
    ballast = small_disk / "ballast"
    subprocess.run(f"head -c 3M /dev/zero > {ballast}", shell=True, check=False, stderr=subprocess.DEVNULL)
    assert full.process.wait(120) == 1
    text = (full.folder / "output.txt").read_text()
    assert "No space left on device" in text
    assert "Traceback" not in text
    assert sum(event["event"] == "evaluation" for event in full.events()) >= 12
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=50M", small_disk], check=True)
    full.process = full.take_on()
    assert full.process.wait(200) == 0, (full.folder / "output.txt").read_text()
    assert faults_of(full, histories(calm.events())) == []
