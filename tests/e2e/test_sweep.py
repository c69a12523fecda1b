"""Whole sweeps on the suite's Ray: what a user gets, and what must not go wrong on the way."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
from collections import Counter
from pathlib import Path

import mlflow
import pyarrow.parquet as pq
import pytest
import ray
from conftest import DIGITS
from mlflow.entities import Run
from mlflow_server import Server
from sweeps import RunSweep, events_of, study_of, summary_of

from orchestrator.tracking.schema import find_key, required


def runs_of(client: mlflow.MlflowClient, run: Path) -> tuple[Run, list[Run]]:
    """The sweep's run and its trials' runs."""
    parent = client.get_run(summary_of(run)["mlflow"]["parent_run_id"])
    query = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    return parent, client.search_runs([parent.info.experiment_id], query)


def test_a_run_directory_tells_the_whole_sweep(digits: Path) -> None:
    names = {path.name for path in digits.iterdir()}
    assert {"spec.yaml", "summary.json", "trials.parquet", "evaluations.parquet", "events.jsonl"} <= names
    summary = summary_of(digits)
    assert summary["status"] == "done"
    searched = [trial for trial in summary["trials"] if trial["phase"] == "search" and trial["status"] != "reused"]
    assert len(searched) == 6
    assert summary["turnaround_s"]["n"] >= 5
    assert summary["best"]["value"] == min(t["value"] for t in searched if t["status"] == "completed")
    (repeat,) = summary["repeats"]
    assert repeat["n"] == 2
    assert repeat["mean"] is not None
    evaluations = pq.read_table(digits / "evaluations.parquet").to_pylist()
    assert {row["trial"] for row in evaluations} >= {trial["id"] for trial in searched}
    assert len(pq.read_table(digits / "trials.parquet")) == len(summary["trials"])
    (workers,) = [event["workers"] for event in events_of(digits, "gang_started")]
    assert len({worker["pid"] for worker in workers}) == 2


def test_stopped_trials_are_pruned_in_the_study_with_their_last_value(digits: Path) -> None:
    stopped = {trial["id"] for trial in summary_of(digits)["trials"] if trial.get("stopped_by") == "asha"}
    assert stopped
    pruned = [trial for trial in study_of(digits).trials if trial.state.name == "PRUNED"]
    assert {f"t{trial.number:04d}" for trial in pruned} == stopped
    for trial in pruned:
        ((step, value),) = trial.intermediate_values.items()
        seen = [e for e in events_of(digits, "evaluation") if e["trial"] == f"t{trial.number:04d}"]
        assert (step, value) in [(e["samples_seen"], e["metrics"]["val/loss"]) for e in seen]
    assert {trial.state.name for trial in study_of(digits).trials} <= {"COMPLETE", "PRUNED"}


def test_mlflow_has_every_trial_once_with_every_point(digits: Path, server: Server) -> None:
    client = mlflow.MlflowClient(server.uri)
    parent, children = runs_of(client, digits)
    ended = events_of(digits, "trial_ended")
    assert len(children) == len(ended) == 7
    assert {run.info.status for run in (parent, *children)} == {"FINISHED"}
    by_trial = {child.data.tags["orchestrator.trial"]: child for child in children}
    for event in ended:
        assert by_trial[event["trial"]].data.tags.get("stopped_by") == event["stopped_by"]
        points = client.get_metric_history(by_trial[event["trial"]].info.run_id, "val/loss")
        mine = [e for e in events_of(digits, "evaluation") if e["trial"] == event["trial"]]
        assert [(p.step, p.value) for p in points] == [(e["samples_seen"], e["metrics"]["val/loss"]) for e in mine]


def test_the_schema_is_what_a_real_sweep_writes(digits: Path, server: Server) -> None:
    client = mlflow.MlflowClient(server.uri)
    parent, children = runs_of(client, digits)
    for scope, run in (("sweep", parent), *(("trial", child) for child in children)):
        for kind, found in (("param", run.data.params), ("metric", run.data.metrics), ("tag", run.data.tags)):
            assert {name for name in found if find_key(kind, scope, name) is None} == set()
            assert required(kind, scope) - set(found) == set()
    assert {item.path for item in client.list_artifacts(parent.info.run_id)} >= {"figures"}
    assert parent.data.tags.get("task/source_hash") != "none"


def test_the_compare_page_shows_batch_and_peak_learning_rate(digits: Path, server: Server, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert browser, "this test needs Chromium"
    parent, children = runs_of(mlflow.MlflowClient(server.uri), digits)
    ids = json.dumps([child.info.run_id for child in children], separators=(",", ":"))
    query = urllib.parse.urlencode({"runs": ids, "experiments": json.dumps([parent.info.experiment_id])})
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=30000", "--window-size=1400,2600"]
    page = f"{server.uri}/#/compare-runs?{query}"
    shown = subprocess.run(
        [browser, *flags, f"--screenshot={tmp_path / 'compare.png'}", "--dump-dom", page],
        capture_output=True,
        text=True,
        timeout=120,
    )
    for text in ("batch/global", "lr/peak", "t0001 B=", "val/loss"):
        assert text in shown.stdout, shown.stdout[-3000:] + shown.stderr[-1000:]


def test_a_fresh_gang_for_every_trial_gives_the_same_bits(run_sweep: RunSweep, digits: Path, tmp_path: Path) -> None:
    """The first two trials of the same search, each in processes of its own."""
    run_sweep("digits.yaml", *DIGITS, "search.trials=2", "cluster.isolation=fresh", out=tmp_path / "fresh")
    warm = {
        (event["trial"], event["samples_seen"]): event["metrics"]["val/loss"]
        for event in events_of(digits, "evaluation")
    }
    fresh = events_of(tmp_path / "fresh", "evaluation")
    assert {event["trial"] for event in fresh} == {"t0000", "t0001"}
    assert all(warm[event["trial"], event["samples_seen"]] == event["metrics"]["val/loss"] for event in fresh)
    pids = {worker["pid"] for event in events_of(tmp_path / "fresh", "gang_started") for worker in event["workers"]}
    assert len(pids) >= 4


def test_non_finite_never_wins_and_leaves_no_trial_running(scripted: Path) -> None:
    summary = summary_of(scripted)
    assert summary["best"]["value"] == 0.5
    assert summary["counts"]["diverged"] == 2
    assert Counter(trial.state.name for trial in study_of(scripted).trials) == {"COMPLETE": 3, "FAIL": 6}


def test_an_exception_on_one_rank_ends_its_trial_with_the_cause(scripted: Path) -> None:
    place_of = {event["trial"]: event["params"]["task.scene"] for event in events_of(scripted, "trial_started")}
    failed = [event for event in events_of(scripted, "trial_ended") if event["status"] == "failed"]
    assert {place_of[event["trial"]] for event in failed} == {"forward", "evaluation", "loader", "setup"}
    for event in failed:
        place = place_of[event["trial"]]
        assert event["outcome"]["failure"]["rank"] == 1
        assert event["outcome"]["failure"]["phase"] == place
        assert f"scripted to break in {place}" in event["reason"]


def test_only_a_death_costs_a_restart_and_it_costs_no_trial(scripted: Path) -> None:
    """Exceptions, NaN and infinity leave the workers as they are; a killed one is replaced, its trial repeated."""
    assert len(events_of(scripted, "gang_started")) == 2
    counts = summary_of(scripted)["counts"]
    assert (counts["completed"], counts["failed"], counts["diverged"]) == (3, 4, 2)
    seen = Counter((event["trial"], event["samples_seen"]) for event in events_of(scripted, "evaluation"))
    assert set(seen.values()) == {1}


def test_everything_is_given_back_to_the_cluster(scripted: Path) -> None:
    """Nine trials went one at a time through a cluster where a second worker group would not have fitted."""
    assert ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"]


def test_two_objectives_give_a_front(run_sweep: RunSweep, tmp_path: Path) -> None:
    summary = run_sweep(
        "regression.yaml",
        "search.trials=6",
        "search.startup_trials=4",
        "search.early_stopping=race",
        "budget.samples=2048",
        "task.dim=31",
        "objective.target=0.05",
        "cluster.gangs=1",
        "cluster.workers=1",
        out=tmp_path / "run",
    )
    front = [tuple(point["value"]) for point in summary["pareto_front"]]
    assert front
    assert front == sorted(front)
    assert [samples for _, samples in front] == sorted((samples for _, samples in front), reverse=True)
    assert summary["counts"]["completed"] + summary["counts"]["stopped"] + summary["counts"]["reused"] >= 6


def test_samples_to_target_with_relative_paths(
    run_sweep: RunSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data and database named from where the user is, though trials run elsewhere; the race stops who cannot win."""
    from sklearn.datasets import load_iris

    monkeypatch.chdir(tmp_path)
    load_iris(as_frame=True).frame.to_parquet("iris.parquet")
    summary = run_sweep(
        "table.yaml",
        "task.path=iris.parquet",
        "tracking.uri=sqlite:///here.db",
        "objective={kind: samples_to_target, metric: val/loss, target: 0.4}",
        "search={sampler: grid, trials: 4, early_stopping: race}",
        "budget={samples: 4000, eval_every: 80}",
        "space={lr.base: [0.0003, 0.003, 0.01, 0.03]}",
        "batch.global=8",
        "cluster.gangs=1",
        out=tmp_path / "run",
    )
    assert sorted(path.name for path in tmp_path.rglob("*.db")) == ["here.db"]
    assert not list(tmp_path.rglob("mlruns"))
    _, children = runs_of(mlflow.MlflowClient(f"sqlite:///{tmp_path}/here.db"), tmp_path / "run")
    assert len(children) == 4
    trials = summary["trials"]
    best = summary["best"]["value"]
    assert best == min(trial["value"] for trial in trials if trial["value"] is not None)
    for trial in trials:
        if trial["stopped_by"] == "race":
            assert trial["samples_seen"] >= min(t["value"] for t in trials if t["value"] is not None)
