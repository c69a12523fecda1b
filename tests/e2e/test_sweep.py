"""Whole sweeps on the suite's Ray: what a user gets, and what must not go wrong on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import optuna
import pyarrow.parquet as pq
import pytest
import ray
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

Sweep = Callable[..., dict[str, Any]]
BASE = {
    "task": {"name": "scripted:Scripted"},
    "budget": {"samples": 512, "eval_every": 128},
    "objective": {"kind": "best_metric", "metric": "val/loss"},
    "batch": {"global": 64},
    "lr": {"base": 0.1, "warmup": 0, "decay": "none"},
    "search": {"trials": 4, "sampler": "grid"},
    "cluster": {"workers": 2, "gangs": 1},
}


def write_space(folder: Path, space: dict[str, Any], **sections: Any) -> Path:
    document = {**BASE, "space": space}
    for name, section in sections.items():
        document[name] = {**document.get(name, {}), **section} if isinstance(section, dict) else section
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def events_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def study_of(folder: Path) -> optuna.Study:
    return optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(folder / "study.journal"))))


def test_a_digits_sweep_leaves_its_whole_story(
    run_sweep: Sweep, tmp_path: Path, tracking_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = run_sweep(
        "digits.yaml",
        "search.trials=6",
        "search.startup_trials=4",
        "budget.samples=3000",
        "budget.eval_every=1000",
        "search.seeds=2",
        "search.repeat_top=1",
        "search.early_stopping=asha",
        "cluster.gangs=2",
    )
    out = tmp_path / "out"
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    assert {"spec.yaml", "summary.json", "trials.parquet", "evaluations.parquet", "events.jsonl"} <= {
        path.name for path in out.iterdir()
    }
    assert summary["status"] == "done"
    searched = [trial for trial in summary["trials"] if trial["phase"] == "search" and trial["status"] != "reused"]
    assert len(searched) == 6
    assert summary["turnaround_s"]["n"] >= 5
    assert summary["best"]["value"] == min(t["value"] for t in searched if t["status"] == "completed")
    (repeat,) = summary["repeats"]
    assert repeat["n"] == 2
    assert repeat["mean"] is not None

    evaluations = pq.read_table(out / "evaluations.parquet").to_pylist()
    assert {row["trial"] for row in evaluations} >= {trial["id"] for trial in searched}
    assert len(pq.read_table(out / "trials.parquet")) == len(summary["trials"])

    client = mlflow.MlflowClient(tracking_uri)
    parent = client.get_run(summary["mlflow"]["parent_run_id"])
    assert parent.info.status == "FINISHED"
    query = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    children = client.search_runs([parent.info.experiment_id], query)
    assert len(children) == len(searched) + 1
    assert {child.info.status for child in children} == {"FINISHED"}
    one = children[0]
    history = client.get_metric_history(one.info.run_id, "val/loss")
    mine = [row for row in evaluations if row["trial"] == one.data.tags["mlflow.runName"].split()[0]]
    assert [(point.step, point.value) for point in history] == [(row["samples_seen"], row["val/loss"]) for row in mine]
    assert {item.path for item in client.list_artifacts(parent.info.run_id)} >= {"figures"}

    workers = [event["workers"] for event in events_of(out, "gang_started")]
    assert len({worker["pid"] for gang in workers for worker in gang}) == 2 * len(workers)


def test_everything_is_given_back_to_the_cluster(run_sweep: Sweep, tmp_path: Path) -> None:
    """Two trials, one at a time, on a cluster where a second group would not fit: both run, nothing stays reserved."""
    space = write_space(
        tmp_path, {"lr.base": [0.1, 0.2]}, cluster={"workers": 2, "cpus_per_worker": 4.0, "gangs": "auto"}
    )
    summary = run_sweep(space)
    assert summary["counts"]["completed"] == 2
    assert ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"]


def test_non_finite_never_wins_and_leaves_no_trial_running(run_sweep: Sweep, tmp_path: Path) -> None:
    space = write_space(tmp_path, {"task.value": ["1.0", "nan", "0.5", "inf"]})
    summary = run_sweep(space)
    assert summary["best"]["value"] == 0.5
    assert summary["counts"]["diverged"] == 2
    states = [trial.state.name for trial in study_of(tmp_path / "out").trials]
    assert sorted(states) == ["COMPLETE", "COMPLETE", "FAIL", "FAIL"]


def test_an_exception_on_one_rank_ends_its_trial_and_no_worker(run_sweep: Sweep, tmp_path: Path) -> None:
    places = ["forward", "evaluation", "loader", "setup"]
    space = write_space(tmp_path, {"task.breaks": ["", *places]}, search={"trials": 5})
    summary = run_sweep(space)
    assert summary["counts"]["failed"] == 4
    assert summary["counts"]["completed"] == 1
    out = tmp_path / "out"
    where = {event["trial"]: event["params"]["task.breaks"] for event in events_of(out, "trial_started")}
    for event in events_of(out, "trial_ended"):
        if event["status"] == "failed":
            place = where[event["trial"]]
            assert event["outcome"]["failure"]["rank"] == 1
            assert event["outcome"]["failure"]["phase"] == place
            assert f"scripted to break in {place}" in event["reason"]
    assert len(events_of(out, "gang_started")) == 1, "the workers lived on"
    assert events_of(out, "gang_lost") == []


def test_a_worker_that_dies_costs_a_restart_and_no_trial(run_sweep: Sweep, tmp_path: Path) -> None:
    marker = tmp_path / "died"
    space = write_space(tmp_path, {"task.breaks": ["die", ""]}, task={"marker": str(marker), **BASE["task"]})
    summary = run_sweep(space)
    assert marker.exists()
    assert summary["counts"]["completed"] == 2
    out = tmp_path / "out"
    assert len(events_of(out, "gang_started")) == 2
    samples = [(event["trial"], event["samples_seen"]) for event in events_of(out, "evaluation")]
    assert len(samples) == len(set(samples)) == 8


def test_stopped_trials_are_pruned_in_the_study_with_their_last_value(run_sweep: Sweep, tmp_path: Path) -> None:
    values = ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6"]
    space = write_space(
        tmp_path,
        {"task.value": values},
        search={"trials": 6, "early_stopping": "asha", "reduction": 2},
    )
    summary = run_sweep(space)
    stopped = {trial["id"] for trial in summary["trials"] if trial["stopped_by"] == "asha"}
    assert stopped
    trials = study_of(tmp_path / "out").trials
    assert len(trials) == 6
    pruned = [trial for trial in trials if trial.state.name == "PRUNED"]
    assert {f"t{trial.number:04d}" for trial in pruned} == stopped
    for trial in pruned:
        assert list(trial.intermediate_values.values()) == pytest.approx(
            [float(trial.user_attrs["params"]["task.value"])]
        )


def test_equal_suggestions_are_paid_once(run_sweep: Sweep, tmp_path: Path) -> None:
    """At the reference batch all rules mean the same run."""
    space = write_space(tmp_path, {"lr.rule": ["none", "sqrt", "linear"]}, search={"trials": 3})
    summary = run_sweep(space)
    assert summary["counts"]["completed"] == 1
    assert summary["counts"]["reused"] == 2
    assert [trial.state.name for trial in study_of(tmp_path / "out").trials] == ["COMPLETE"] * 3


def test_a_fresh_gang_for_every_trial_gives_the_same_numbers(run_sweep: Sweep, tmp_path: Path) -> None:
    shared = ("search.sampler=grid", "search.trials=2", "space={lr.base: [0.05, 0.2]}", "budget.samples=2000")
    histories = []
    for isolation in ("warm", "fresh"):
        run_sweep(
            "digits.yaml",
            *shared,
            "batch.global=64",
            "cluster.gangs=1",
            f"cluster.isolation={isolation}",
            out=isolation,
        )
        found = {
            (event["trial"], event["samples_seen"]): event["metrics"]["val/loss"]
            for event in events_of(tmp_path / isolation, "evaluation")
        }
        histories.append(found)
    assert histories[0] == histories[1]
    pids = {worker["pid"] for event in events_of(tmp_path / "fresh", "gang_started") for worker in event["workers"]}
    assert len(pids) >= 4


def test_samples_to_target_with_the_race(run_sweep: Sweep, tmp_path: Path) -> None:
    summary = run_sweep(
        "quadratic.yaml",
        "search.sampler=grid",
        "search.trials=6",
        "space={batch.global: [16, 64], lr.base: [0.1, 0.4, 0.02]}",
        "budget.samples=8192",
        "cluster.gangs=1",
    )
    by_batch = {entry["global_batch"]: entry for entry in summary["by_batch"]}
    assert set(by_batch) == {16, 64}
    best = summary["best"]
    assert best["value"] == min(t["value"] for t in summary["trials"] if t["value"] is not None)
    for trial in summary["trials"]:
        if trial["stopped_by"] == "race":
            rivals = [t for t in summary["trials"] if t["global_batch"] == trial["global_batch"] and t["value"]]
            assert min(t["value"] for t in rivals) <= trial["samples_seen"]


def test_two_objectives_give_a_front(run_sweep: Sweep) -> None:
    summary = run_sweep(
        "regression.yaml",
        "search.trials=8",
        "search.startup_trials=4",
        "budget.samples=4096",
        "task.dim=31",
        "cluster.gangs=1",
    )
    front = [tuple(point["value"]) for point in summary["pareto_front"]]
    assert front
    assert front == sorted(front)
    assert [samples for _, samples in front] == sorted((samples for _, samples in front), reverse=True)


def test_relative_paths_start_where_the_user_is(
    run_sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.datasets import load_iris

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    load_iris(as_frame=True).frame.to_parquet("iris.parquet")
    summary = run_sweep(
        "table.yaml",
        "task.path=iris.parquet",
        "tracking.uri=sqlite:///here.db",
        "search.trials=4",
        "budget.samples=1000",
        "space={lr.base: {low: 0.001, high: 0.01, log: true}}",
        "batch.global=8",
        "cluster.gangs=1",
    )
    assert summary["counts"]["completed"] == 4
    assert [path.name for path in tmp_path.rglob("*.db")] == ["here.db"]
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/here.db")
    parent = client.get_run(summary["mlflow"]["parent_run_id"])
    query = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    assert len(client.search_runs([parent.info.experiment_id], query)) == 4
    assert not list(tmp_path.rglob("mlruns"))
