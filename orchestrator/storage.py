"""Files that appear whole or not at all, on a local disk or any filesystem that pyarrow can reach."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from orchestrator.errors import StorageError

Uri = str | Path
_PART = ".part"
# Stores that show a file only once its upload is complete, by the names that pyarrow gives them.
_OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})


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
    """`name` inside the folder `uri`; the options of a URI (``s3://bucket/a?region=...``) stay at its end."""
    text = str(uri)
    options = ""
    if "://" in text:
        text, mark, rest = text.partition("?")
        options = mark + rest
    return (f"{text.rstrip('/')}/{name}" if text != "/" else f"/{name}") + options


def write_atomically(uri: Uri, data: bytes | memoryview) -> None:
    """Write a whole file; a reader sees the old content or the new, never a part. Parent folders are made.

    Raises:
        StorageError: if it cannot be written.
    """

    def copy(sink: Any) -> None:
        sink.write(data)

    write_stream(uri, copy)


def write_stream(uri: Uri, write: Callable[[Any], None]) -> None:
    """As `write_atomically`, for a writer that takes an open pyarrow output stream. If it raises, nothing is changed.

    For an object store, the content is gathered in memory first.
    """
    filesystem, path = open_output(uri)
    try:
        put(filesystem, path, write)
    except OSError as error:
        raise refusal(uri, error) from error


def put(filesystem: fs.FileSystem, path: str, write: Callable[[Any], None]) -> None:
    """As `write_stream`, on an open filesystem.

    Raises:
        OSError: if it cannot be written; whatever `write` raises passes as well.
    """
    if isinstance(filesystem, fs.LocalFileSystem):
        _replace_local(Path(path), filesystem, write)
        return
    folder, _, name = path.rpartition("/")
    if folder:
        filesystem.create_dir(folder, recursive=True)
    if filesystem.type_name in _OBJECT_STORES:
        # Closing a stream completes its upload, also after an exception: it is opened only when all is at hand.
        memory = pa.BufferOutputStream()
        write(memory)
        with filesystem.open_output_stream(path) as sink:
            sink.write(memory.getvalue())
        return
    # Others (HDFS, for one) show a file that is still being written.
    part = f"{folder}/{_part_name(name)}" if folder else _part_name(name)
    try:
        with filesystem.open_output_stream(part) as sink:
            write(sink)
        filesystem.move(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            filesystem.delete_file(part)
        raise


def read(uri: Uri) -> bytes:
    """A whole file.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        StorageError: as `open_output`.
    """
    filesystem, path = open_output(uri)
    with filesystem.open_input_file(path) as source:
        data: bytes = source.read()
    return data


def file_sizes(folder: Uri) -> dict[str, int]:
    """Name and bytes of each file directly in `folder`, parts that a broken write left there included; none if it is
    missing. Raises OSError if it cannot be read."""
    filesystem, path = open_output(folder)
    found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return {info.base_name: info.size for info in found if info.type == fs.FileType.File}


def is_part(name: str) -> bool:
    """Whether a file's name is that of a write which never came to its end."""
    return name.startswith(".") and name.endswith(_PART)


def remove(uri: Uri) -> None:
    """Remove a file. Raises FileNotFoundError if there is none, OSError if it cannot be removed."""
    filesystem, path = open_output(uri)
    filesystem.delete_file(path)


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
    part = path.with_name(_part_name(path.name))
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


def _part_name(name: str) -> str:
    return f".{name}.{uuid.uuid4().hex}{_PART}"


def refusal(uri: Uri, error: OSError) -> StorageError:
    """The error that the user sees where the output `uri` cannot be written."""
    return StorageError(
        f"the output must be writable ({error.strerror or error})",
        key="--out",
        value=str(uri),
        remedy="choose a folder that you may write to, or free space on its disk",
    )
