"""The byte corpus and its windows: built once, in a fixed order, every byte predicted once, short windows masked."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from orchestrator.errors import StorageError
from orchestrator.tasks.byte_corpus import CACHE_VARIABLE, cache_folder, corpus_file, is_val, open_split, source_files
from orchestrator.tasks.bytes import MASKED, Bytes, BytesConfig, Windows


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Eighty small sources, some of which are for validation, and files that do not belong to the corpus."""
    root = tmp_path / "lib"
    for i in range(80):
        path = root / f"package{i % 3}" / f"module{i}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"x = {i}\n" * (i % 7))
    for other in ("site-packages/a.py", "test/b.py", "package0/tests/c.py", "config-3/d.py", "_sysconfigdata_x.py"):
        path = root / other
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("left out")
    (root / "package0" / "notes.txt").write_text("left out")
    return root


def expected(root: Path, val: bool) -> bytes:
    names = sorted(p.relative_to(root).as_posix() for p in root.glob("package*/module*.py"))
    return b"".join((root / name).read_bytes() + b"\0" for name in names if is_val(name) == val)


def test_corpus_is_the_sources_in_sorted_order(sources: Path, tmp_path: Path) -> None:
    path = corpus_file(tmp_path / "cache", sources)
    assert len(source_files(sources)) == 80
    for split in ("train", "val"):
        stream = open_split(path, split)
        assert bytes(stream) == expected(sources, split == "val") != b""


def test_split_is_a_view_of_the_memory_map(sources: Path, tmp_path: Path) -> None:
    path = corpus_file(tmp_path / "cache", sources)
    before = pa.total_allocated_bytes()
    stream = open_split(path, "train")
    assert not stream.flags.owndata
    assert not stream.flags.writeable
    assert pa.total_allocated_bytes() == before


def test_content_decides_the_file(sources: Path, tmp_path: Path) -> None:
    first = corpus_file(tmp_path / "cache", sources)
    corpus_file.cache_clear()
    assert corpus_file(tmp_path / "cache", sources) == first
    (sources / "package0" / "module0.py").write_text("changed")
    corpus_file.cache_clear()
    assert corpus_file(tmp_path / "cache", sources) != first


def test_racing_processes_build_it_once(sources: Path, tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from orchestrator.tasks.byte_corpus import corpus_file;"
        "print(os.stat(corpus_file(Path(sys.argv[1]), Path(sys.argv[2]))).st_ino)"
    )
    cache = tmp_path / "new" / "cache"
    command = [sys.executable, "-c", code, str(cache), str(sources)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    inodes = [racer.communicate(timeout=60)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 4
    assert len(set(inodes)) == 1
    assert sorted(p.suffix for p in cache.iterdir()) == [".arrow", ".lock"]


def test_a_build_waits_for_the_one_under_way(sources: Path, tmp_path: Path) -> None:
    with open(tmp_path / "corpus.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=corpus_file, args=(tmp_path, sources))
        waiting.start()
        waiting.join(timeout=0.5)
        assert waiting.is_alive()
        assert list(tmp_path.glob("*.arrow")) == []
    waiting.join(timeout=60)
    assert len(list(tmp_path.glob("*.arrow"))) == 1


def test_cache_folder_is_the_users_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_folder() == Path.home() / ".cache" / "batch-orchestrator"


def test_refuses_an_unusable_cache_and_an_empty_library(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=rf"{CACHE_VARIABLE} = .*must be writable.*Set {CACHE_VARIABLE}"):
        corpus_file(tmp_path / "file", sources)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match=r"must hold \.py files"):
        corpus_file(tmp_path / "cache", tmp_path / "empty")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("context", [1, 5, 16, 10_000])
def test_every_byte_is_predicted_once(sources: Path, tmp_path: Path, packed: bool, context: int) -> None:
    path = corpus_file(tmp_path / "cache", sources)
    windows = Windows(path, "train", context, packed, None)
    inputs, targets = windows.fetch(np.arange(len(windows)), None)
    stream = torch.tensor(np.array(open_split(path, "train")), dtype=torch.int64)
    follows = torch.ones(len(stream) - 1, dtype=torch.bool) if packed else stream[:-1] != 0
    valid = targets != MASKED
    assert torch.equal(targets[valid], stream[1:][follows])
    assert torch.equal(inputs[valid], stream[:-1][follows])
    assert torch.all(inputs[~valid] == 0)
    assert torch.all(valid[:, 0])


def test_a_masked_window_weighs_its_valid_bytes(sources: Path, tmp_path: Path) -> None:
    """A mean over windows would be another number: weights are unequal."""
    windows = Windows(corpus_file(tmp_path / "cache", sources), "train", 16, False, None)
    task = Bytes(BytesConfig(width=16, heads=2, context=16))
    torch.manual_seed(0)
    model = task.model().double()
    singles = [task.loss(model, windows.fetch(np.array([i]), None)) for i in range(12)]
    weights = [int(weight) for _, weight in singles]
    assert len(set(weights)) > 1
    total, weight = task.loss(model, windows.fetch(np.arange(12), None))
    assert int(weight) == sum(weights)
    assert float(total.detach()) == pytest.approx(sum(float(t.detach()) for t, _ in singles), rel=1e-12)
    assert float(
        task.evaluate(model, windows.fetch(np.arange(12), None))["bits_per_byte"][0].detach()
    ) == pytest.approx(float(total.detach()) / np.log(2), rel=1e-12)


def test_an_all_masked_batch_weighs_nothing() -> None:
    task = Bytes(BytesConfig(width=16, heads=2, context=4))
    total, weight = task.loss(task.model(), (torch.zeros(2, 4, dtype=torch.int64), torch.full((2, 4), MASKED)))
    assert (float(total.detach()), int(weight)) == (0.0, 0)


def test_at_most_spreads_evenly(sources: Path, tmp_path: Path) -> None:
    path = corpus_file(tmp_path / "cache", sources)
    every, some = Windows(path, "train", 4, True, None), Windows(path, "train", 4, True, 10)
    chosen = np.linspace(0, len(every) - 1, 10).astype(int)
    assert len(every) > 2 * len(some) == 20
    assert torch.equal(some.fetch(np.arange(10), None)[1], every.fetch(chosen, None)[1])


def test_the_model_sees_no_future_byte() -> None:
    task = Bytes(BytesConfig(width=16, heads=2, context=8))
    torch.manual_seed(0)
    model = task.model().double()
    a = torch.randint(0, 256, (1, 8))
    b = a.clone()
    b[0, 5:] = (b[0, 5:] + 1) % 256
    difference = (model(a) - model(b)).abs().amax(dim=(0, 2))
    assert float(difference[:5].max().detach()) == 0.0
    assert float(difference[5:].min().detach()) > 0.0


def test_default_model_learns_the_standard_library() -> None:
    """Below the entropy of single bytes, about 3.26 nats here, after 96 updates: it uses what came before."""
    task = Bytes(BytesConfig(val_windows=128))
    torch.manual_seed(0)
    model = task.model()
    assert sum(p.numel() for p in model.parameters()) == 120_576
    data, order = task.train_data(), np.random.default_rng(0)
    stream = open_split(corpus_file(cache_folder()), "train")
    share = np.bincount(stream, minlength=256) / len(stream)
    unigram = -np.sum(share * np.log(share, where=share > 0, out=np.zeros(256)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(96):
        total, weight = task.loss(model, data.fetch(order.integers(0, len(data), 8), None))
        optimizer.zero_grad()
        (total / weight).backward()
        optimizer.step()
    with torch.no_grad():
        loss, count = task.evaluate(model, task.val_data().fetch(np.arange(128), None))["loss"]
    assert float(loss) / float(count) < unigram - 0.3
