from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import StorageError
from orchestrator.storage import check_writable, join, open_output, write_atomically, write_stream


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_file_is_written_whole_with_its_folders(tmp_path: Path, form: str) -> None:
    out = form.format(tmp_path / "a b" if "://" not in form else tmp_path / "ab") + "/deep/summary.json"
    write_atomically(out, b"one")
    write_atomically(out, b"two")
    (written,) = tmp_path.rglob("summary.json")
    assert written.read_bytes() == b"two"
    assert [path.name for path in written.parent.iterdir()] == ["summary.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_atomically(tmp_path / "t", b"old")

    def broken(sink: object) -> None:
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError):
        write_stream(tmp_path / "t", broken)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("t", b"old")]


def test_a_folder_is_made_and_proven_writable(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "run")
    assert list((tmp_path / "new" / "run").iterdir()) == []


@pytest.mark.parametrize("out", ["{}/file/run", "file://{}/file/run", "nosuch://bucket/run", "/proc/run"])
def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as refused:
        check_writable(out.format(tmp_path))
    assert "--out" in str(refused.value)
    assert refused.value.remedy


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_output("runs/x")[1] == str(tmp_path / "runs/x")
    assert join("s3://bucket/a/", "b") == "s3://bucket/a/b"
