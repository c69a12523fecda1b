"""A run directory: new, written atomically, and published to where it belongs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.errors import StorageError
from orchestrator.tracking import run_dir
from orchestrator.tracking.run_dir import RunDir


def test_a_local_folder_is_made_and_is_where_the_run_lives(tmp_path: Path) -> None:
    run = RunDir(str(tmp_path / "a" / "run"))
    run.write_json("summary.json", {"best": 1.0})
    assert run.is_local
    assert run.local == Path(run.uri) == tmp_path / "a" / "run"
    assert run.events == tmp_path / "a" / "run" / "events.jsonl"
    assert json.loads((run.local / "summary.json").read_text()) == {"best": 1.0}
    assert {path.name for path in run.local.iterdir()} == {"summary.json"}, "nothing temporary stays"


def test_a_relative_folder_stays_what_it_was_when_trials_run_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDir("runs/here")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run.write("spec.yaml", "name: x\n")
    assert (tmp_path / "runs" / "here" / "spec.yaml").exists()


@pytest.mark.parametrize("name", ["with space", "ünïcode", "100%", "a#b?c", "it's"])
def test_hostile_names_are_names(tmp_path: Path, name: str) -> None:
    run = RunDir(str(tmp_path / name))
    run.write("spec.yaml", "name: x\n")
    assert (tmp_path / name / "spec.yaml").read_text() == "name: x\n"


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(StorageError, match="must be new") as caught:
        RunDir(str(tmp_path))
    assert caught.value.key == "--out"
    assert str(tmp_path) in str(caught.value)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        RunDir(str(tmp_path / "file"))


def test_a_number_that_is_not_finite_is_no_json_and_the_old_file_stays(tmp_path: Path) -> None:
    run = RunDir(str(tmp_path))
    run.write_json("summary.json", {"best": 1.0})
    with pytest.raises(ValueError, match="JSON"):
        run.write_json("summary.json", {"best": float("nan")})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"best": 1.0}


def test_another_filesystem_gets_every_file_but_rays_own_when_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir("mock://bucket/run")
    assert not run.is_local
    run.events.write_text("{}\n")
    (run.local / "figures").mkdir()
    (run.local / "figures" / "by_batch.png").write_bytes(b"png")
    (run.local / "ray").mkdir()
    (run.local / "ray" / "session.log").write_text("")
    sent: dict[str, bytes] = {}
    monkeypatch.setattr(run_dir, "write_atomically", sent.__setitem__)  # pyarrow's mock forgets what it was told
    run.publish()
    assert sent == {
        "mock://bucket/run/events.jsonl": b"{}\n",
        "mock://bucket/run/figures/by_batch.png": b"png",
    }
