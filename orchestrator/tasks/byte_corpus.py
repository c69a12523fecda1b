"""Python's standard library sources as a stream of bytes, in a memory-mapped Arrow file built once into a cache.

The file holds two record batches, training and validation, of one uint8 column; every source file ends with a 0 byte.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import sysconfig
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.errors import StorageError

CACHE_VARIABLE = "ORCHESTRATOR_CACHE"
VAL_SHARE = 0.1
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_SCHEMA = pa.schema([("byte", pa.uint8())])
_FORMAT = 1
Array = np.ndarray[Any, Any]


def source_files(root: Path) -> list[str]:
    """Paths of the .py files under `root`, relative and with forward slashes, sorted whatever the file system's order.

    Left out: installed packages, tests, and what this interpreter's own build generated (config-*, _sysconfigdata*).
    """
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [s for s in subfolders if s not in _SKIPPED_FOLDERS and not s.startswith("config-")]
        paths = [Path(folder, n) for n in names if n.endswith(".py") and not n.startswith("_sysconfigdata")]
        found += [path.relative_to(root).as_posix() for path in paths]
    return sorted(found)


def is_val(relative_path: str) -> bool:
    """Whether a file is for validation: by a hash of its path, so that other files coming or going change nothing."""
    first = hashlib.sha256(relative_path.encode()).digest()[:8]
    return int.from_bytes(first, "big") < VAL_SHARE * 2**64


def cache_folder() -> Path:
    """``$ORCHESTRATOR_CACHE``, or ``~/.cache/batch-orchestrator``."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "batch-orchestrator")


@lru_cache(maxsize=4)
def corpus_file(cache: Path, root: Path | None = None) -> Path:
    """The Arrow file of the sources under `root`, built if it is not there yet.

    Its name holds the Python version and a hash of the contents. Processes that race build it once: the first takes a
    lock, the others wait; it appears under its name only when it is whole.

    Args:
        cache: the folder to keep it in, such as `cache_folder()`; made if missing.
        root: folder of sources; by default the running Python's standard library.

    Raises:
        StorageError: if the cache cannot be written or `root` gives no training or no validation bytes.
    """
    root = root or Path(sysconfig.get_paths()["stdlib"])
    splits, digest = _read(root)
    target = cache / f"python-{platform.python_version()}-{digest}.arrow"
    if target.exists():
        return target
    if not all(splits):
        raise StorageError("must hold .py files for training and for validation", key="bytes corpus", value=str(root))
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / "corpus.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _write(target, splits)
    except OSError as error:
        raise StorageError(
            f"the cache folder must be writable ({error})",
            key=CACHE_VARIABLE,
            value=str(cache),
            remedy=f"set {CACHE_VARIABLE} to a folder that is",
        ) from error
    return target


def open_split(path: Path, split: str) -> Array:
    """The bytes of "train" or "val", uint8 ``[n]``: a view of the memory map, of which only what is read is loaded."""
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    column = reader.get_batch(("train", "val").index(split)).column(0)
    return np.asarray(column.to_numpy(zero_copy_only=True))


def _read(root: Path) -> tuple[tuple[bytes, bytes], str]:
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    digest = hashlib.sha256(f"format {_FORMAT}".encode())
    for name in source_files(root):
        # A 0 byte inside a source would be taken for its end.
        text = (root / name).read_bytes().replace(b"\0", b"") + b"\0"
        digest.update(name.encode() + b"\0" + text)
        parts[is_val(name)].append(text)
    return (b"".join(parts[0]), b"".join(parts[1])), digest.hexdigest()[:16]


def _write(target: Path, splits: tuple[bytes, bytes]) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".tmp")
    os.close(handle)
    try:
        with pa.OSFile(name, "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
            for split in splits:
                column = pa.Array.from_buffers(pa.uint8(), len(split), [None, pa.py_buffer(split)])
                writer.write_batch(pa.record_batch([column], schema=_SCHEMA))
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)
