"""One trial's checkpoints on disk: which there are, which are whole, which are kept. No torch in here.

A checkpoint is two writes: its data as ``<samples_seen>.pt``, then ``index.json``, which makes it count. What a kill
leaves between the two is in no index, and is removed by the next write.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator import storage
from orchestrator.config.trial import Mode
from orchestrator.errors import StorageError

INDEX = "index.json"
_SUFFIX = ".pt"
_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Policy and place of one trial's checkpoints; equal on all its ranks.

    Attributes:
        folder: a local path, or a URI of a filesystem that pyarrow can reach; every rank must reach it.
        every_s: least seconds between two of them; 0 makes one at each evaluation, None makes none, also on a stop.
        keep_last: how many of the latest are kept, >= 1.
        keep_best: whether the one with the best `metric` is kept as well.
        metric: of the evaluation at which the checkpoint was made, such as ``val/loss``.
        mode: whether less or more of it is better.
        keep_at: samples seen at which one is kept whatever comes after it.

    Raises:
        ValueError: for an `every_s` below 0 or a `keep_last` below 1.
    """

    folder: str
    every_s: float | None = 30.0
    keep_last: int = 1
    keep_best: bool = True
    metric: str = "val/loss"
    mode: Mode = "min"
    keep_at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.every_s is not None and not self.every_s >= 0:
            raise ValueError(f"every_s = {self.every_s!r}: must be at least 0 seconds, or None for no checkpoints")
        if self.keep_last < 1:
            raise ValueError(f"keep_last = {self.keep_last!r}: must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A complete checkpoint, as the index names it.

    Attributes:
        samples_seen: the clock at which it was taken.
        file: its data's name in the folder.
        bytes: size of that file.
        sha256: of its content, as hex digits.
        value: of the policy's metric; None where there was no evaluation, or no finite value.
    """

    samples_seen: int
    file: str
    bytes: int
    sha256: str
    value: float | None = None


class DamagedCheckpoint(OSError):
    """A checkpoint's file is missing, or is not what the index says."""


def latest(folder: str) -> Entry | None:
    """The newest checkpoint whose file is whole; None where there is none. Damaged and missing ones are passed over.

    Raises:
        OSError: the folder cannot be read.
        StorageError: the folder is no path that pyarrow knows, or holds another program's index.
    """
    for entry in reversed(_entries(folder)):
        with contextlib.suppress(DamagedCheckpoint):
            read(folder, entry)
            return entry
    return None


def at(folder: str, samples_seen: int) -> Entry:
    """The checkpoint that was taken at `samples_seen`.

    Raises:
        DamagedCheckpoint: there is none.
        OSError, StorageError: as `latest`.
    """
    for entry in _entries(folder):
        if entry.samples_seen == samples_seen:
            return entry
    raise DamagedCheckpoint(f"{folder}: holds no checkpoint after {samples_seen} samples")


def read(folder: str, entry: Entry) -> bytes:
    """The data of a checkpoint.

    Raises:
        DamagedCheckpoint: its file is missing, or differs from what was written.
    """
    uri = storage.join(folder, entry.file)
    try:
        data = storage.read(uri)
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{uri}: the index names it and it is not there") from error
    if len(data) != entry.bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise DamagedCheckpoint(f"{uri}: {len(data)} bytes are not the {entry.bytes} that were written")
    return data


def write(policy: Checkpoints, samples_seen: int, data: memoryview, value: float | None) -> Entry:
    """Write a checkpoint, then remove what is no longer kept. Only one process may write to a folder.

    Args:
        samples_seen: when it was taken.
        data: its content.
        value: of the policy's metric at that point, if it has one.

    Raises:
        OSError, StorageError: it could not be written. The checkpoints before it are untouched.
    """
    folder = policy.folder
    value = value if value is not None and math.isfinite(value) else None
    entry = Entry(
        samples_seen=samples_seen,
        file=f"{samples_seen}{_SUFFIX}",
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        value=value,
    )
    storage.write_atomically(storage.join(folder, entry.file), data)
    sizes = storage.file_sizes(folder)
    known = [old for old in _entries(folder) if old.file != entry.file and sizes.get(old.file) == old.bytes]
    kept = _kept([*known, entry], policy)
    index = {"schema_version": _SCHEMA, "checkpoints": [dataclasses.asdict(one) for one in kept]}
    storage.write_atomically(storage.join(folder, INDEX), json.dumps(index, indent=1).encode())
    named = {one.file for one in kept}
    for name in sizes:
        if (name.endswith(_SUFFIX) and name not in named) or storage.is_part(name):
            with contextlib.suppress(FileNotFoundError):
                storage.remove(storage.join(folder, name))
    return entry


def _kept(entries: Sequence[Entry], policy: Checkpoints) -> list[Entry]:
    """In the order in which they were written, which after a damaged file need not be that of samples seen."""
    kept = set(entries[-policy.keep_last :]) | {entry for entry in entries if entry.samples_seen in policy.keep_at}
    valued = [entry for entry in entries if entry.value is not None]
    if policy.keep_best and valued:
        sign = 1.0 if policy.mode == "min" else -1.0
        kept.add(min(valued, key=lambda entry: sign * (entry.value or 0.0)))
    return [entry for entry in entries if entry in kept]


def _entries(folder: str) -> list[Entry]:
    uri = storage.join(folder, INDEX)
    try:
        raw: Any = json.loads(storage.read(uri))
        version = raw["schema_version"]
        if version == _SCHEMA:
            return [Entry(**one) for one in raw["checkpoints"]]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError) as error:
        # Written atomically, so it is not half of ours: starting over would remove what it named.
        raise _foreign(uri, f"{type(error).__name__}: {error}") from error
    raise _foreign(uri, f"schema_version {version!r}")


def _foreign(uri: str, found: str) -> StorageError:
    return StorageError(
        f"must be an index of checkpoints of schema_version {_SCHEMA} ({found})",
        key="checkpoint",
        value=uri,
        remedy="remove the folder, or start in another one",
    )
