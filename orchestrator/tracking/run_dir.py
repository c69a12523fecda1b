"""A run directory: a folder that is written live if it is local, and a local copy that is published if it is not."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from pyarrow import fs

from orchestrator.credentials import hide
from orchestrator.errors import StorageError
from orchestrator.mirror import mirrored, restore
from orchestrator.storage import check_writable, join, open_output, probe_folder, read, refusal, write_atomically

SPEC = "spec.yaml"  # written first
EVENTS = "events.jsonl"
STUDY = "study.journal"
GROWING = (EVENTS, STUDY)


def check_free(uri: str) -> None:
    """Refuse a run directory that is known to be impossible, without making it.

    Raises:
        StorageError: it holds a run, is no folder, or what it lies in cannot be written.
    """
    filesystem, path = open_output(uri)
    if holds_run(uri):
        raise StorageError(
            "the run directory must be new, this one holds a run",
            key="--out",
            value=uri,
            remedy="choose another folder, or take its run on with --resume",
        )
    if isinstance(filesystem, fs.LocalFileSystem):
        try:
            probe_folder(Path(path))
        except OSError as error:
            raise refusal(uri, error) from error


def holds_run(uri: str) -> bool:
    """Whether the folder `uri` has a run, if only its spec; False where nothing can be found out.

    Raises:
        StorageError: if the scheme is unknown or the filesystem cannot be reached.
    """
    filesystem, path = open_output(uri)
    try:
        there = filesystem.get_file_info([f"{path}/{name}" for name in (SPEC, EVENTS)])
        return any(file.type != fs.FileType.NotFound for file in there) or mirrored(uri, EVENTS)
    except OSError:
        return False  # nothing is known; making the folder will tell


class RunDir:
    """The folder of one run.

    Args:
        uri: a local path, or any path that pyarrow's filesystems reach (``s3://bucket/folder``).
        taken_on: whether it holds a run, which this process goes on with.

    Raises:
        StorageError: it cannot be written, or holds another run.
    """

    def __init__(self, uri: str, *, taken_on: bool = False) -> None:
        if not taken_on:
            check_free(uri)
        check_writable(uri)
        filesystem, path = open_output(uri)
        self.is_local = isinstance(filesystem, fs.LocalFileSystem)
        self.uri = path if self.is_local else uri
        self.local = Path(path) if self.is_local else Path(tempfile.mkdtemp(prefix="orchestrator-run-"))
        if taken_on and not self.is_local:
            self._fetch()

    @property
    def events(self) -> Path:
        """The live event log."""
        return self.local / EVENTS

    @property
    def study(self) -> Path:
        """The live file of the Optuna study."""
        return self.local / STUDY

    @property
    def mirror_uri(self) -> str | None:
        """Where growing files are kept as well while the run lasts, if the folder is not local."""
        return None if self.is_local else self.uri

    def _fetch(self) -> None:
        """Bring here what an earlier process left."""
        for name in GROWING:
            restore(self.uri, self.local / name)
        for name in (SPEC, "summary.json"):
            with contextlib.suppress(FileNotFoundError):
                (self.local / name).write_bytes(read(join(self.uri, name)))

    def write(self, name: str, data: bytes | str) -> None:
        """Write a whole file, atomically; credentials are taken out of a text."""
        write_atomically(join(self.uri, name), hide(data).encode() if isinstance(data, str) else data)

    def write_json(self, name: str, value: Any) -> None:
        """Write strict JSON, atomically."""
        self.write(name, json.dumps(hide(value), indent=2, allow_nan=False) + "\n")

    def publish(self) -> None:
        """Bring files that were written locally to where they belong; nothing to do for a local folder."""
        if self.is_local:
            return
        for path in sorted(self.local.rglob("*")):
            if path.is_file() and "ray" not in path.relative_to(self.local).parts[:-1]:
                self.write(str(path.relative_to(self.local)), path.read_bytes())
