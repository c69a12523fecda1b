"""The study methods branch, scan and scaling through real gangs, on regression of 31 inputs: the noise scale is 32."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mlflow
import pyarrow.parquet as pq
import pytest
import yaml
from sweeps import events_of, summary_of

from orchestrator.study.__main__ import main
from orchestrator.tracking.schema import KEYS, find_key

SCALE = 32
SPACE: dict[str, Any] = {
    "name": "branches",
    "task": {"name": "regression", "dim": SCALE - 1},
    "objective": {"metric": "val/loss"},
    "budget": {"samples": 1024, "eval_every": 64},
    "optimizer": {"name": "SGD"},
    "batch": {"reference": 16},
    # The best rate times 0.05: so short a step that the rate halves at the noise scale.
    "lr": {"base": 0.05 / (1 + SCALE / 16), "rule": "noise", "noise_scale": SCALE, "warmup": 0, "decay": "none"},
    "study": {
        "batches": [16, 32, 64, 128],
        "branch": {"checkpoints": 2, "samples": 1280, "floor": 0.0, "tolerance": 0.01, "evaluations": 16},
        "scan": {"updates": 60},
        "scaling": {"workers": [1, 2, 4], "per_worker_batch": 16, "seeds": 4},
    },
    "cluster": {"workers": 2, "gangs": 1},
}


def study_of(folder: Path, uri: str, method: str, code: int = 0) -> Path:
    """Run `SPACE` as the command line would; its run directory."""
    (folder / "space.yaml").write_text(yaml.safe_dump({**SPACE, "tracking": {"uri": uri}}))
    assert main([str(folder / "space.yaml"), "--method", method, "--out", str(folder / "run")]) == code
    return folder / "run"


def known_as(method: str) -> set[str]:
    return {key.name for key in KEYS if key.scope == "sweep" and key.name.startswith(f"{method}/")}


@pytest.fixture(scope="module")
def branches(ray_session: None, tracking_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study_of(tmp_path_factory.mktemp("branches"), tracking_uri, "branch")


@pytest.fixture(scope="module")
def scan(ray_session: None, tracking_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study_of(tmp_path_factory.mktemp("scan"), tracking_uri, "scan")


@pytest.fixture(scope="module")
def scaling(ray_session: None, tracking_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study_of(tmp_path_factory.mktemp("scaling"), tracking_uri, "scaling", code=3)


def test_the_rate_of_branches_halves_at_the_noise_scale(branches: Path) -> None:
    summary = summary_of(branches)
    assert (summary["status"], summary["method"], summary["verdict"]) == ("done", "branch", "determined")
    assert [one["samples_seen"] for one in summary["checkpoints"]] == [512, 1024]
    for one in summary["checkpoints"]:
        local, tolerance = one["local_critical_batch"], one["tolerance_batch"]
        assert SCALE / 1.5 < local["local_critical_batch"] < SCALE * 1.5
        assert local["low"] < local["local_critical_batch"] < local["high"]
        assert local["one_step"]["value"] == pytest.approx(SCALE, rel=0.3)
        # The closed form of the fitted rates, for the length and tolerance that are told with it.
        assert "1280 samples after the checkpoint, is within 0.01" in tolerance["definition"]
        if tolerance["crossing"] is not None:
            assert tolerance["crossing"] == pytest.approx(tolerance["expected"], rel=0.3)
        assert one["noise_scale"]["low"] < SCALE < one["noise_scale"]["high"]
    assert "falls half as fast per sample" in summary["sentence"]
    assert summary["growth"]["low"] < 1.0 < summary["growth"]["high"], "regression is as noisy at its end as before"


def test_branches_begin_where_their_checkpoint_was_taken(branches: Path) -> None:
    started = {event["trial"]: event["spec"] for event in events_of(branches, "trial_started")}
    begun: dict[str, dict[str, Any]] = {}
    for event in events_of(branches, "evaluation"):
        begun.setdefault(event["trial"], event)
    at = {e["samples_seen"]: e for e in events_of(branches, "evaluation") if e["trial"] == "t0000"}
    assert len(begun) == 1 + 2 * 4 * 2
    for trial, first in begun.items():
        if (start := started[trial]["start"]) is not None:
            assert first["samples_seen"] == start["samples_seen"]
            assert first["updates"] == 0
            assert first["metrics"]["val/loss"] == at[first["samples_seen"]]["metrics"]["val/loss"]


def test_a_study_by_branches_is_tables_figures_and_one_mlflow_run(branches: Path) -> None:
    summary = summary_of(branches)
    rows = pq.read_table(branches / "branches.parquet").to_pylist()
    assert [(row["checkpoint_samples"], row["global_batch"]) for row in rows] == [
        (mark, batch) for mark in (512, 1024) for batch in (16, 32, 64, 128)
    ]
    assert sorted(path.name for path in (branches / "figures").iterdir()) == ["branch_rates.png", "noise_scale.png"]
    client = mlflow.MlflowClient(summary["mlflow"]["tracking_uri"])
    parent = client.get_run(summary["mlflow"]["parent_run_id"])
    assert parent.data.tags["study"] == "branch"
    assert all(find_key("metric", "sweep", name) for name in parent.data.metrics)
    assert {name for name in known_as("branch") if "*" not in name} <= set(parent.data.metrics)
    points = client.get_metric_history(parent.info.run_id, "branch/local_critical_batch")
    assert {point.step: point.value for point in points} == pytest.approx(
        {one["samples_seen"]: one["local_critical_batch"]["local_critical_batch"] for one in summary["checkpoints"]}
    )


def test_a_study_by_branches_that_is_done_says_so_again(branches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--resume", str(branches)]) == 0
    out = capsys.readouterr().out
    assert "rate halves at" in out
    assert out.splitlines()[-1] == str(branches)
    assert main(["--resume", str(branches), "--method", "scan"]) == 2


def test_a_scan_compares_batches_at_equal_samples_and_updates(scan: Path) -> None:
    summary = summary_of(scan)
    assert (summary["status"], summary["method"], summary["verdict"]) == ("done", "scan", "compared")
    assert (summary["equal_samples"], summary["equal_updates"]) == (960, 60)
    rows = summary["rows"]
    at_samples, at_updates = ([row[key] for row in rows] for key in ("at_equal_samples", "at_equal_updates"))
    assert at_samples == sorted(at_samples)
    assert at_updates == sorted(at_updates, reverse=True)
    for row in rows:
        # the rate of the exact expected loss for small steps
        exact = 2 * 0.05 / (SCALE + row["global_batch"])
        assert row["trend"]["low"] < exact < row["trend"]["high"]
        assert row["samples_per_second"] > 0
    assert "val/loss after 960 samples is best at batch 16" in summary["sentence"]
    table = pq.read_table(scan / "scan.parquet").to_pylist()
    assert [row["trend"] for row in table] == [row["trend"]["value"] for row in rows]
    assert (scan / "figures" / "scan.png").exists()
    client = mlflow.MlflowClient(summary["mlflow"]["tracking_uri"])
    parent = client.get_run(summary["mlflow"]["parent_run_id"])
    assert all(find_key("metric", "sweep", name) for name in parent.data.metrics)
    assert known_as("scan") <= set(parent.data.metrics)


def exact_loss(batch: int) -> float:
    """Of regression from 0.5 after 1,024 samples of small steps, each at 0.05 of the best rate of its batch."""
    return 0.5 * math.exp(-2 * 0.05 * 1024 / (SCALE + batch))


def test_a_scaling_check_tells_what_larger_batches_lose(scaling: Path) -> None:
    summary = summary_of(scaling)
    assert (summary["status"], summary["method"], summary["verdict"]) == ("done", "scaling", "lost")
    assert (summary["equal_samples"], summary["seeds"], summary["holds_up_to_workers"]) == (1024, 4, None)
    base, *rows = summary["rows"]
    assert [row["global_batch"] for row in summary["rows"]] == [16, 32, 64]
    assert base["mean"] == pytest.approx(exact_loss(16), rel=0.3)
    for row in rows:
        lost = exact_loss(row["global_batch"]) - exact_loss(16)
        assert row["lost"]["low"] > 0
        assert row["lost"]["value"] == pytest.approx(lost, rel=0.3)
    assert "Lost: 4 workers (batch 64) against 1 (batch 16): val/loss is worse by 0.1" in summary["sentence"]
    assert "4 workers" in summary["broken"]
    started = events_of(scaling, "trial_started")
    assert len(started) == 3 * 4
    assert {event["spec"]["budget_samples"] for event in started} == {1024}
    last = {event["trial"]: event["samples_seen"] for event in events_of(scaling, "evaluation")}
    assert list(last.values()) == [1024] * 12, "equal samples at every batch"


def test_a_scaling_check_is_a_table_a_figure_and_one_mlflow_run(scaling: Path) -> None:
    summary = summary_of(scaling)
    table = pq.read_table(scaling / "scaling.parquet").to_pylist()
    assert [row["lost"] for row in table] == [row["lost"]["value"] for row in summary["rows"]]
    assert (scaling / "figures" / "scaling.png").exists()
    client = mlflow.MlflowClient(summary["mlflow"]["tracking_uri"])
    parent = client.get_run(summary["mlflow"]["parent_run_id"])
    assert parent.data.tags["study"] == "scaling"
    assert all(find_key("metric", "sweep", name) for name in parent.data.metrics)
    unknown = {"scaling/holds_up_to_workers"}  # nothing holds
    assert {name for name in known_as("scaling") if "*" not in name} - unknown <= set(parent.data.metrics)


def test_a_scaling_check_that_is_done_says_so_again_and_takes_more_seeds(
    scaling: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--resume", str(scaling)]) == 3
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == str(scaling)
    assert "error: quality is lost with the global batch of" in err
    assert main(["--resume", str(scaling), "--set", "study.scaling.tolerance=9"]) == 2
    assert main(["--resume", str(scaling), "--set", "study.scaling.seeds=5"]) == 3
    assert summary_of(scaling)["seeds"] == 5
    asked = [event["asked"] for event in events_of(scaling, "trial_started")]
    assert asked[12:] == [f"batch of {workers} workers, seed 4" for workers in (1, 2, 4)], "the others are known"


def test_what_cannot_be_told_costs_nothing_that_was_trained(
    ray_session: None, tracking_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of our own making while results are made, tabled and drawn: the reason, exit 1, and it can be taken on."""
    run = tmp_path / "run"
    spec = {**SPACE, "study": {"batches": [16, 32, 64], "scan": {"updates": 20}}, "tracking": {"uri": tracking_uri}}
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(spec))
    commands = [[str(tmp_path / "space.yaml"), "--method", "scan", "--out", str(run)], ["--resume", str(run)]]

    def broken(*args: Any, **names: Any) -> None:
        raise KeyError("val/loss")

    for command, part in zip([*commands, commands[1]], ("outcome_of", "scan_table", "_figures"), strict=True):
        with monkeypatch.context() as patch:
            patch.setattr(f"orchestrator.study.scan.{part}", broken)
            assert main(command) == 1, part
        summary = summary_of(run)
        assert summary["status"] == "failed"
        assert "KeyError: 'val/loss'" in summary["warnings"], part
        assert [one["status"] for one in summary["trials"]] == ["completed"] * 3
    assert main(commands[1]) == 0
    summary = summary_of(run)
    assert (summary["status"], summary["warnings"]) == ("done", [])
    assert len(events_of(run, "trial_started")) == 3, "nothing was trained again"
    assert (run / "figures" / "scan.png").exists()


def test_a_scan_leaves_a_batch_out_that_cannot_be_trained(ray_session: None, tracking_uri: str, tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "task": {"name": "roomless:Roomless", "dim": 16},
        "lr": {"base": 0.1, "rule": "none", "warmup": 0, "decay": "none"},
        "study": {"batches": [8, 16, 64], "scan": {"updates": 30}},
        "tracking": {"uri": tracking_uri},
    }
    (tmp_path / "space.yaml").write_text(yaml.safe_dump({**SPACE, **sections}))
    assert main([str(tmp_path / "space.yaml"), "--method", "scan", "--out", str(tmp_path / "run")]) == 0
    summary = summary_of(tmp_path / "run")
    assert [row["global_batch"] for row in summary["rows"]] == [8, 16]
    (warning,) = [text for text in summary["warnings"] if "left out" in text]
    assert warning.startswith("scan at batch 64, seed 0 is left out: failed 2 times: ")
    assert "no room for 32 samples" in warning
