"""Checkpoints on disk: which are found, which are kept, and what a write that does not end leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import storage
from orchestrator.errors import StorageError
from orchestrator.training import checkpoint
from orchestrator.training.checkpoint import Checkpoints, DamagedCheckpoint, latest, read, write


def put(policy: Checkpoints, samples_seen: int, value: float | None = None) -> checkpoint.Entry:
    return write(policy, samples_seen, memoryview(f"state {samples_seen}".encode()), value)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_was_written_is_read(tmp_path):
    policy = Checkpoints(folder=str(tmp_path / "deep" / "trial"))
    assert latest(policy.folder) is None
    entry = put(policy, 640, 0.5)
    assert latest(policy.folder) == entry
    assert (entry.samples_seen, entry.file, entry.bytes, entry.value) == (640, "640.pt", 9, 0.5)
    assert read(policy.folder, entry) == b"state 640"


def test_a_uri_is_a_folder_too(tmp_path):
    policy = Checkpoints(folder=f"file://{tmp_path}/trial")
    assert latest(policy.folder) is None
    entry = put(policy, 64)
    assert latest(policy.folder) == entry
    assert files(tmp_path / "trial") == {"64.pt", "index.json"}


values = st.none() | st.sampled_from([0.25, 0.5, 1.0, float("nan"), float("inf")])


@settings(max_examples=60)
@given(
    told=st.lists(values, min_size=1, max_size=8),
    keep_last=st.integers(1, 3),
    keep_best=st.booleans(),
    mode=st.sampled_from(["min", "max"]),
)
def test_the_last_and_the_best_are_kept_and_nothing_else(told, keep_last, keep_best, mode, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    policy = Checkpoints(folder=str(folder), keep_last=keep_last, keep_best=keep_best, mode=mode)
    for index, value in enumerate(told):
        put(policy, 10 * (index + 1), value)
        assert latest(policy.folder).samples_seen == 10 * (index + 1)
    right = set(range(len(told))[-keep_last:])
    finite = {index: value for index, value in enumerate(told) if value in (0.25, 0.5, 1.0)}
    if keep_best and finite:
        best = (min if mode == "min" else max)(finite.values())
        right.add(next(index for index, value in finite.items() if value == best))
    assert files(folder) == {"index.json"} | {f"{10 * (index + 1)}.pt" for index in right}
    index = json.loads((folder / "index.json").read_text())
    assert [entry["samples_seen"] for entry in index["checkpoints"]] == [10 * (index + 1) for index in sorted(right)]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    path.write_bytes(b"x" + path.read_bytes()[1:])


@pytest.mark.parametrize("damage", [Path.unlink, _cut, _flip], ids=["missing", "cut", "flipped"])
def test_a_damaged_one_is_passed_over(damage, tmp_path):
    policy = Checkpoints(folder=str(tmp_path), keep_last=3)
    for samples in (64, 128, 192):
        put(policy, samples)
    damage(tmp_path / "192.pt")
    entries = checkpoint._entries(policy.folder)
    with pytest.raises(DamagedCheckpoint, match=r"192\.pt"):
        read(policy.folder, entries[-1])
    assert latest(policy.folder).samples_seen == 128
    # What comes next is the newest, though the damaged one had seen more.
    put(replace(policy, keep_last=1, keep_best=False), 160)
    assert latest(policy.folder).samples_seen == 160
    assert files(tmp_path) == {"160.pt", "index.json"}


def test_a_write_that_ends_between_data_and_index_leaves_the_one_before(tmp_path, monkeypatch):
    policy = Checkpoints(folder=str(tmp_path))
    put(policy, 64)
    right = storage.write_atomically

    def broken(uri, data):
        if str(uri).endswith("index.json"):
            raise OSError("no space left")
        right(uri, data)

    monkeypatch.setattr(storage, "write_atomically", broken)
    with pytest.raises(OSError, match="no space left"):
        put(policy, 128)
    monkeypatch.undo()
    assert latest(policy.folder).samples_seen == 64
    assert files(tmp_path) == {"64.pt", "128.pt", "index.json"}
    (tmp_path / ".index.json.0123.part").write_text("half of an ind")
    put(policy, 192)
    assert files(tmp_path) == {"192.pt", "index.json"}


@pytest.mark.parametrize("content", ["{", "[]", '{"schema_version": 2, "checkpoints": []}', '{"schema_version": 1}'])
def test_an_index_that_is_not_ours_is_refused_and_nothing_is_removed(content, tmp_path):
    (tmp_path / "index.json").write_text(content)
    (tmp_path / "64.pt").write_text("theirs")
    policy = Checkpoints(folder=str(tmp_path))
    with pytest.raises(StorageError, match="schema_version 1"):
        latest(policy.folder)
    with pytest.raises(StorageError, match="start in another one"):
        put(policy, 128)
    assert (tmp_path / "64.pt").read_text() == "theirs"


@pytest.mark.parametrize(("name", "value"), [("every_s", -1.0), ("every_s", float("nan")), ("keep_last", 0)])
def test_a_policy_that_cannot_be_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} = "):
        Checkpoints(folder="x", **{name: value})
