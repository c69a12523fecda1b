"""Files that appear whole or not at all, on a local disk or any filesystem that pyarrow can reach."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyarrow import fs

from orchestrator.errors import StorageError

Uri = str | Path


def open_output(uri: Uri) -> tuple[fs.FileSystem, str]:
    """The filesystem of a local path or a URI (``file://``, ``s3://``, ...), and the path on it.

    Raises:
        StorageError: if the scheme is unknown or the filesystem cannot be reached.
    """
    text = str(uri)
    try:
        if not text or "\0" in text:
            raise ValueError("it is no path")
        if "://" in text:
            filesystem, path = fs.FileSystem.from_uri(text)
            if not path.strip("/"):
                raise ValueError("it names no folder")
            return filesystem, path
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(text))
    except (OSError, ValueError) as error:
        raise StorageError(
            f"must be a local path or a filesystem that pyarrow can reach ({error})",
            key="--out",
            value=text,
            remedy="write a local folder, file:///folder, or s3://bucket/folder",
        ) from error


def join(uri: Uri, name: str) -> str:
    """`name` inside the folder `uri`."""
    text = str(uri)
    return f"{text.rstrip('/')}/{name}" if text != "/" else f"/{name}"


def write_atomically(uri: Uri, data: bytes) -> None:
    """Write a whole file; a reader sees the old content or the new, never a part. Parent folders are made.

    Raises:
        StorageError: if it cannot be written.
    """

    def copy(sink: Any) -> None:
        sink.write(data)

    write_stream(uri, copy)


def write_stream(uri: Uri, write: Callable[[Any], None]) -> None:
    """As `write_atomically`, for a writer that takes an open pyarrow output stream."""
    filesystem, path = open_output(uri)
    try:
        if isinstance(filesystem, fs.LocalFileSystem):
            _replace_local(Path(path), filesystem, write)
        else:
            filesystem.create_dir(os.path.dirname(path), recursive=True)
            # Object stores show an upload only once it is complete, so no second name is needed there.
            with filesystem.open_output_stream(path) as sink:
                write(sink)
    except OSError as error:
        raise refusal(uri, error) from error


def probe_folder(folder: Path) -> None:
    """Prove that the local `folder` can be written or made, and leave nothing behind.

    Raises:
        OSError: it, or the nearest folder above it that exists, is no folder or cannot be written.
    """
    there = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
    with tempfile.TemporaryFile(dir=there):
        pass


def check_writable(uri: Uri) -> None:
    """Make the folder `uri` and prove that a file can be written and removed there.

    Raises:
        StorageError: naming the folder, the cause and the remedy.
    """
    filesystem, path = open_output(uri)
    probe = f"{path.rstrip('/')}/.writable-{uuid.uuid4().hex}"
    try:
        filesystem.create_dir(path, recursive=True)
        with filesystem.open_output_stream(probe) as sink:
            sink.write(b"x")
        filesystem.delete_file(probe)
    except OSError as error:
        raise refusal(uri, error) from error


def _replace_local(path: Path, filesystem: fs.FileSystem, write: Callable[[Any], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with filesystem.open_output_stream(str(part)) as sink:
            write(sink)
        fd = os.open(part, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def refusal(uri: Uri, error: OSError) -> StorageError:
    """The error that the user sees where the output `uri` cannot be written."""
    return StorageError(
        f"the output must be writable ({error.strerror or error})",
        key="--out",
        value=str(uri),
        remedy="choose a folder that you may write to, or free space on its disk",
    )
