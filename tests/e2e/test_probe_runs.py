"""The probe in real processes: killed and taken on, what it measures, what it tells MLflow, and what it refuses."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import mlflow
import pyarrow.parquet as pq
import pytest
import yaml
from chaos import Sweep
from sweeps import events_of, summary_of

from orchestrator.probe.__main__ import main
from orchestrator.tracking.schema import find_key, required

SPACE: dict[str, Any] = {
    "name": "short_probe",
    "task": {"name": "digits", "hidden": 32},
    "probe": {"rounds": 2, "seconds": 0.02, "micro_max": 16},
    "cluster": {"workers": 2, "gangs": 1, "device_memory": "4GiB"},
}
LADDER = [1, 2, 4, 8, 16]


class Probe(Sweep):
    """A probe in a process of its own."""

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self._start_module("orchestrator.probe", *arguments)


@pytest.fixture(scope="module")
def taken_on(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a probe that was killed in its second round, and taken on."""
    cut = Probe(tmp_path_factory.mktemp("probe") / "run", 2, 30.0, objective={}, batch={}, search={}, space={}, **SPACE)
    cut.wait_for(lambda events: any((e.get("asked") or {}).get("round") == 1 for e in events))
    cut.process.kill()
    cut.process.wait(60)
    assert not any(event["event"] == "probe_done" for event in cut.events())
    cut.process = cut._start("--resume", str(cut.out))
    assert cut.process.wait(300) == 0, (cut.folder / "output.txt").read_text()
    return cut.out


def test_nothing_is_measured_twice(taken_on: Path) -> None:
    asked = Counter(
        (event["event"], repr(sorted(event["asked"].items())))
        for kind in ("probe_device", "probe_predicted", "probe_timed", "probe_tried", "probe_found", "probe_done")
        for event in events_of(taken_on, kind)
    )
    assert set(asked.values()) == {1}
    assert {kind for kind, _ in asked} >= {"probe_device", "probe_predicted", "probe_timed", "probe_found"}


def test_speed_memory_and_verdicts_are_told(taken_on: Path) -> None:
    summary = summary_of(taken_on)
    assert (summary["status"], summary["kind"], summary["verdict"]) == ("done", "probe", "measured")
    rows = summary["timings"]
    alone = [row["micro_batch"] for row in rows if (row["world_size"], row["accumulation"]) == (1, 1)]
    assert alone == LADDER
    assert {row["world_size"] for row in rows} == {1, 2}
    for row in rows:
        assert row["global_batch"] == row["micro_batch"] * row["accumulation"] * row["world_size"]
        assert row["step_s"]["low"] <= row["step_s"]["value"] <= row["step_s"]["high"]
        assert 0.3 < sum(row["shares"].values()) <= 1.001
    assert {one["micro_batch"] for one in summary["scaling"]["weak"]} == set(LADDER)
    memory = summary["memory"]
    assert (memory["micro_batch"], memory["how"]) == (16, "measured")
    assert all(one["fits"] and one["peak_bytes"] > 5e7 for one in memory["tries"])
    assert [one["name"] for one in summary["savers"]] == ["bf16"]
    assert "run python -m orchestrator.study" in " ".join(summary["sentences"])
    table = pq.read_table(taken_on / "timings.parquet").to_pylist()
    assert [row["step_s"] for row in table] == [row["step_s"]["value"] for row in rows]
    assert pq.read_table(taken_on / "memory.parquet").num_rows == len(memory["predicted"])
    assert {path.name for path in (taken_on / "figures").iterdir()} == {"speed.png", "memory.png"}


def test_it_is_one_mlflow_run_whose_every_key_is_documented(taken_on: Path) -> None:
    summary = summary_of(taken_on)
    client = mlflow.MlflowClient(summary["mlflow"]["tracking_uri"])
    run = client.get_run(summary["mlflow"]["parent_run_id"])
    assert (run.info.status, run.data.tags["probe"]) == ("FINISHED", "true")
    points = client.get_metric_history(run.info.run_id, "probe/step_ms/1_workers")
    assert sorted(point.step for point in points) == LADDER
    for kind, found in (("metric", run.data.metrics), ("tag", run.data.tags), ("param", run.data.params)):
        assert {name for name in found if find_key(kind, "sweep", name) is None} == set()
        assert required(kind, "sweep") <= set(found)


def test_profiles_are_kept_and_compared(
    ray_session: None, tracking_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    probe = {"rounds": 2, "seconds": 0.01, "micro_max": 4, "savers": False}
    cluster = {"workers": 1}
    (tmp_path / "space.yaml").write_text(
        yaml.safe_dump({**SPACE, "probe": probe, "cluster": cluster, "tracking": {"uri": tracking_uri}})
    )
    assert main(["space.yaml", "--out", "first", "--record"]) == 0
    code = main(["space.yaml", "--out", "second", "--compare"])
    compared = summary_of(tmp_path / "second")["compared"]
    assert code == (3 if compared["moved"] else 0)
    assert compared["runs"] == 1
    assert compared["changed"] == {}
    assert len(list((tmp_path / "profiles").iterdir())) == 1
    # One that is done says what it was not asked before, and measures nothing again.
    timed = events_of(tmp_path / "first", "probe_timed")
    assert main(["--resume", "first", "--compare"]) == 0  # with itself
    assert summary_of(tmp_path / "first")["compared"]["moved"] == []
    assert events_of(tmp_path / "first", "probe_timed") == timed


def test_one_sample_that_does_not_fit_is_an_error_that_names_remedies(
    ray_session: None, tracking_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {**SPACE, "cluster": {"workers": 1, "device_memory": "20KiB"}, "tracking": {"uri": tracking_uri}}
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    assert main([str(tmp_path / "space.yaml"), "--out", str(tmp_path / "run")]) == 1
    assert "not even a micro batch of one sample fits" in capsys.readouterr().err
    assert summary_of(tmp_path / "run")["status"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--study", "nowhere"], "holds no finished study"),
        (["--device-memory", "80GB"], ""),
        (["--device-memory", "lots"], "cluster.device_memory"),
        (["--resume", "nowhere"], "holds no probe"),
        (["--resume", "nowhere", "--dry-run"], "Leave out SPACE.yaml"),
    ],
)
def test_refusals_before_start(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    space = [] if "--resume" in arguments else ["space.yaml", "--dry-run"]
    assert main([*space, *arguments]) == (2 if words else 0)
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
