from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from orchestrator import storage
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
    assert join("s3://bucket/a/?region=eu-west-1", "b") == "s3://bucket/a/b?region=eu-west-1"
    assert join("why?/", "b") == "why?/b"


class Bucket(fs.FileSystemHandler):
    """What pyarrow's stores do that local disks do not, in memory.

    An upload is complete once its stream is closed, with whatever was written until then (an object store), or its
    content is there for all from the first byte (`visible`: HDFS).
    """

    def __init__(self, type_name: str, *, visible: bool) -> None:
        self.type_name, self.visible, self.files = type_name, visible, {}

    def get_type_name(self) -> str:
        return self.type_name

    def create_dir(self, path: str, recursive: bool) -> None:
        pass

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        return pa.PythonFile(_Upload(self, path), mode="w")

    def move(self, source: str, destination: str) -> None:
        self.files[destination] = self.files.pop(source)

    def delete_file(self, path: str) -> None:
        del self.files[path]

    copy_file = create_dir
    delete_dir = delete_dir_contents = delete_root_dir_contents = create_dir
    get_file_info = get_file_info_selector = normalize_path = create_dir
    open_append_stream = open_input_file = open_input_stream = open_output_stream


class _Upload(io.BytesIO):
    def __init__(self, bucket: Bucket, path: str) -> None:
        super().__init__()
        self.bucket, self.path = bucket, path

    def write(self, data: bytes) -> int:
        written = super().write(data)
        if self.bucket.visible:
            self.bucket.files[self.path] = self.getvalue()
        return written

    def close(self) -> None:
        if not self.closed:
            self.bucket.files[self.path] = self.getvalue()
        super().close()


@pytest.mark.parametrize(("type_name", "visible"), [("s3", False), ("hdfs", True)])
def test_a_broken_upload_is_never_seen(type_name: str, visible: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(type_name, visible=visible)
    filesystem = fs.PyFileSystem(bucket)
    monkeypatch.setattr(storage, "_OBJECT_STORES", {f"py::{type_name}"} - {"py::hdfs"})
    seen = []

    def half(sink: Any) -> None:
        sink.write(b"ne")
        seen.append(dict(bucket.files).get("run/index.json"))
        raise RuntimeError("half way")

    storage.put(filesystem, "run/index.json", lambda sink: sink.write(b"old"))
    with pytest.raises(RuntimeError, match="half way"):
        storage.put(filesystem, "run/index.json", half)
    assert seen == [b"old"]
    assert bucket.files == {"run/index.json": b"old"}
    storage.put(filesystem, "run/index.json", lambda sink: sink.write(b"new"))
    assert bucket.files == {"run/index.json": b"new"}


def test_files_are_read_listed_and_removed(tmp_path: Path) -> None:
    folder = f"file://{tmp_path}/run"
    assert storage.file_sizes(folder) == {}
    write_atomically(join(folder, "a"), b"one")
    write_atomically(join(folder, "deep/b"), memoryview(b"two"))
    assert storage.read(join(folder, "deep/b")) == b"two"
    assert storage.file_sizes(folder) == {"a": 3}
    storage.remove(join(folder, "a"))
    for gone in (storage.read, storage.remove):
        with pytest.raises(FileNotFoundError):
            gone(join(folder, "a"))
