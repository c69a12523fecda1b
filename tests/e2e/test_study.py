"""A critical-batch study through real gangs, short: what it tells, what a killed one tells, and its clear verdicts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import mlflow
import pyarrow.parquet as pq
import pytest
import yaml
from chaos import Sweep
from sweeps import events_of, summary_of

from orchestrator import sweep
from orchestrator.config.load import load_spec
from orchestrator.probe.__main__ import main as probe
from orchestrator.study.__main__ import main
from orchestrator.tracking.schema import find_key, required

SPACE: dict[str, Any] = {
    "name": "short_study",
    "task": {"name": "quadratic", "dim": 16},
    "objective": {"kind": "samples_to_target", "metric": "val/loss", "target": 0.17},
    "budget": {"samples": 8000},
    "optimizer": {"name": "SGD"},
    "batch": {"reference": 8},
    "lr": {"base": 0.5, "rule": "none", "warmup": 0, "decay": "none"},
    "study": {"batches": [4, 16, 64], "least_seeds": 2, "most_seeds": 3, "precision": 0.5, "width": 10.0},
    "cluster": {"workers": 2, "gangs": 1},
    "space": {"lr.base": {"low": 0.05, "high": 4.0, "log": True}},
}
ESTIMATES = ("verdict", "critical_batch", "ladder", "lr_exponent", "noise_scale")


def study_of(folder: Path, uri: str, **sections: Any) -> dict[str, Any]:
    """Run `SPACE` with `sections` laid over it as the command line would; its summary."""
    folder.mkdir(exist_ok=True)
    (folder / "space.yaml").write_text(yaml.safe_dump({**SPACE, "tracking": {"uri": uri}, **sections}))
    assert main([str(folder / "space.yaml"), "--out", str(folder / "run")]) == 0
    return summary_of(folder / "run")


@pytest.fixture(scope="module")
def calm(ray_session: None, tracking_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a study that nobody disturbs."""
    folder = tmp_path_factory.mktemp("study")
    study_of(folder, tracking_uri)
    return folder / "run"


def test_a_study_tells_every_estimate_with_its_interval(calm: Path) -> None:
    summary = summary_of(calm)
    assert (summary["status"], summary["method"]) == ("done", "ladder")
    critical, ladder = summary["critical_batch"], summary["ladder"]
    assert critical["low"] < critical["value"] < critical["high"]
    assert summary["cbs20"]["value"] == pytest.approx(0.2 * critical["value"])
    assert [rung["global_batch"] for rung in ladder] == [4, 16, 64]
    for rung in ladder:
        assert rung["seeds"] >= 2
        assert rung["low"] < rung["samples_to_target"] < rung["high"]
        assert rung["updates_to_target"] == rung["samples_to_target"] / rung["global_batch"]
    assert summary["samples"]["spent"] == sum(trial["samples_seen"] for trial in summary["trials"])
    assert "nearly in full" in summary["sentence"]
    table = pq.read_table(calm / "ladder.parquet").to_pylist()
    assert [row["samples_to_target"] for row in table] == [rung["samples_to_target"] for rung in ladder]


def test_a_study_is_one_mlflow_run_with_its_estimates(calm: Path) -> None:
    summary = summary_of(calm)
    client = mlflow.MlflowClient(summary["mlflow"]["tracking_uri"])
    parent = client.get_run(summary["mlflow"]["parent_run_id"])
    assert parent.data.tags["study"] == "ladder"
    assert parent.data.metrics["study/critical_batch"] == pytest.approx(summary["critical_batch"]["value"])
    steps = client.get_metric_history(parent.info.run_id, "ladder/samples_to_target")
    assert {point.step: point.value for point in steps} == pytest.approx(
        {rung["global_batch"]: rung["samples_to_target"] for rung in summary["ladder"]}
    )
    for kind, found in (("metric", parent.data.metrics), ("tag", parent.data.tags), ("param", parent.data.params)):
        assert {name for name in found if find_key(kind, "sweep", name) is None} == set()
        assert required(kind, "sweep") - set(found) == set()
    figures = {item.path for item in client.list_artifacts(parent.info.run_id, "figures")}
    assert figures >= {"figures/to_target_by_batch.png", "figures/lr_by_batch.png"}


def test_a_run_counts_up_to_the_evaluation_that_decided_it(calm: Path) -> None:
    first = {event["trial"]: event["samples_seen"] for event in reversed(events_of(calm, "evaluation"))}
    assert set(first.values()) == {0}
    for event in events_of(calm, "trial_ended"):
        assert event["status"] in ("stopped", "completed", "diverged")
        assert event["stopped_by"] in (None, "overshoot", "race")


def test_a_study_that_is_done_says_so_again_and_is_no_sweep(calm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (calm / "events.jsonl").read_bytes()
    assert main(["--resume", str(calm)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(calm)
    assert sweep.main(["--resume", str(calm)]) == 2
    assert "holds a study" in capsys.readouterr().err
    assert (calm / "events.jsonl").read_bytes() == before


def test_the_probe_says_what_to_run(calm: Path, tracking_uri: str, tmp_path: Path) -> None:
    short = ["probe.rounds=2", "probe.seconds=0.01", "probe.micro_max=32", "probe.savers=false"]
    settings = [word for text in (*short, f"tracking.uri={tracking_uri}") for word in ("--set", text)]
    assert probe(["--study", str(calm), "--out", str(tmp_path / "run"), *settings]) == 0
    found, ladder = summary_of(tmp_path / "run")["recommendation"], summary_of(calm)["ladder"]
    rates = {rung["global_batch"]: rung["lr"] for rung in ladder}
    for name in ("fastest", "balanced", "cheapest"):
        spec = load_spec(tmp_path / "run" / f"{name}.yaml").spec
        assert (spec.batch.global_batch, spec.lr.base) == (found[name]["global_batch"], found[name]["lr"])
        assert spec.lr.base == rates[spec.batch.global_batch]
    assert sweep.main([str(tmp_path / "run" / "fastest.yaml"), "--dry-run"]) == 0


class Study(Sweep):
    """A study in a process of its own."""

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self._start_module("orchestrator.study", *arguments)


def test_killed_and_taken_on_it_ends_with_the_same_estimates(calm: Path, tmp_path: Path) -> None:
    own = {name: SPACE[name] for name in SPACE if name != "cluster"}
    cut = Study(tmp_path / "study", 2, 0.0, search={}, **own)
    cut.wait_for(lambda events: sum(event["event"] == "trial_ended" for event in events) >= 6)
    seen = len(events_of(cut.out, "evaluation"))
    cut.wait_for(lambda events: sum(event["event"] == "evaluation" for event in events) >= seen + 12)
    cut.process.kill()
    assert cut.finish() == (0, True), (cut.folder / "output.txt").read_text()
    calm_summary, summary = summary_of(calm), json.loads((cut.out / "summary.json").read_text())
    for name in ESTIMATES:
        assert summary[name] == calm_summary[name], name
    assert [trial["id"] for trial in summary["trials"]] == [trial["id"] for trial in calm_summary["trials"]]


def test_a_study_whose_record_keeper_dies_says_how_to_take_it_on(tmp_path: Path) -> None:
    cut = Study(tmp_path / "study", 2, 30.0, search={}, **{name: SPACE[name] for name in SPACE if name != "cluster"})
    cut.wait_for(lambda events: any(event["event"] == "evaluation" for event in events))
    (mailbox,) = cut.victims("mailbox")
    mailbox.kill()
    assert cut.process.wait(120) == 1
    text = (cut.folder / "output.txt").read_text()
    assert f"record died; take the run on with: python -m orchestrator.study --resume {cut.out}" in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("target", "verdict", "words"),
    [(2.0, "met at start", "harder target"), (1e-9, "not reached", "easier target")],
)
def test_no_number_without_a_target_in_reach(
    ray_session: None, tracking_uri: str, tmp_path: Path, target: float, verdict: str, words: str
) -> None:
    budget = {"samples": 200}
    objective = {**SPACE["objective"], "target": target}
    summary = study_of(tmp_path / "study", tracking_uri, objective=objective, budget=budget)
    assert summary["verdict"] == verdict
    assert words in summary["reason"]
    assert summary["critical_batch"]["value"] is None
    assert summary["sentence"].startswith("The critical batch is not determined")
    assert summary["status"] == "done"


def test_target_and_ladder_are_chosen_from_a_baseline_run(ray_session: None, tracking_uri: str, tmp_path: Path) -> None:
    summary = study_of(
        tmp_path / "study",
        tracking_uri,
        objective={"kind": "best_metric", "metric": "val/loss"},
        budget={"samples": 3000},
        study={**SPACE["study"], "batches": "auto", "least_seeds": 2, "most_seeds": 2, "total_samples": 8000},
    )
    assert not summary["target"]["given"]
    assert [note.split()[0] for note in summary["chosen"]] == ["target", "batches"]
    (baseline,) = [trial for trial in summary["trials"] if trial["phase"] == "baseline"]
    assert (baseline["global_batch"], baseline["peak_lr"]) == (8, 0.5)
    assert summary["samples"]["spent"] >= summary["samples"]["baseline"] > 0


def test_a_run_that_fails_again_ends_the_study(
    ray_session: None, tracking_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = {"name": "scripted:Scripted", "scene": "forward"}
    sections = {"task": task, "batch": {"reference": 16}, "tracking": {"uri": tracking_uri}}
    (tmp_path / "space.yaml").write_text(yaml.safe_dump({**SPACE, **sections}))
    assert main([str(tmp_path / "space.yaml"), "--out", str(tmp_path / "run")]) == 1
    assert "scripted to break in forward" in capsys.readouterr().err
    summary = summary_of(tmp_path / "run")
    assert (summary["status"], summary["verdict"]) == ("failed", "unfinished")
    assert [trial["status"] for trial in summary["trials"]] == ["failed", "failed"]


def test_a_batch_that_cannot_be_trained_is_left_out_and_the_others_are_fitted(
    ray_session: None, tracking_uri: str, tmp_path: Path
) -> None:
    task = {"name": "roomless:Roomless", "dim": 16}
    study = {**SPACE["study"], "batches": [4, 8, 16, 64]}
    summary = study_of(tmp_path, tracking_uri, task=task, study=study)
    assert summary["status"] == "done"
    rungs = {rung["global_batch"]: rung for rung in summary["ladder"]}
    assert "no room for 32 samples" in rungs[64]["reason"]
    assert rungs[64]["samples_to_target"] is None
    assert all(rungs[batch]["samples_to_target"] for batch in (4, 8, 16))
    assert summary["warnings"][0].startswith("batch 64 is left out: a run failed 2 times")
    assert [trial["status"] for trial in summary["trials"] if trial["global_batch"] == 64] == ["failed", "failed"]
    assert main(["--resume", str(tmp_path / "run")]) == 0
