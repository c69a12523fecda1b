"""A growing local file kept on a filesystem that cannot append, such as an object store: one piece at a time."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import StorageError
from orchestrator.storage import file_sizes, join, read, refusal, write_atomically

_SUFFIX = ".d"
_DIGITS = 16


class Mirror:
    """Sends what was appended to `path` since the last `push` to the folder `uri`, under the file's name.

    An object holds the bytes from the offset that is its name, so objects in the order of their names are the file.

    Args:
        path: the local file; it only ever grows, or loses a torn tail before it was pushed.
        uri: a folder that pyarrow reaches.
        sent: bytes of the file that are there already.
    """

    def __init__(self, path: Path, uri: str, sent: int = 0) -> None:
        self._path, self._folder, self._sent = path, join(uri, path.name + _SUFFIX), sent

    def push(self) -> None:
        """Send the rest, durable when this returns.

        Raises:
            StorageError: the folder cannot be written.
        """
        with self._path.open("rb") as file:
            file.seek(self._sent)
            rest = file.read()
        if rest:
            write_atomically(join(self._folder, f"{self._sent:0{_DIGITS}d}"), rest)
            self._sent += len(rest)


def mirrored(uri: str, name: str) -> bool:
    """Whether the folder `uri` has a mirror of a file `name`. Raises OSError or StorageError if that is not known."""
    return bool(file_sizes(join(uri, name + _SUFFIX)))


def restore(uri: str, path: Path) -> bool:
    """Write the mirrored file to the local `path`; False if there is none.

    Raises:
        StorageError: the mirror cannot be read, or lacks a piece.
    """
    folder = join(uri, path.name + _SUFFIX)
    try:
        names = sorted(name for name in file_sizes(folder) if name.isdigit())
        with path.open("wb") as file:
            for name in names:
                if int(name) != file.tell():
                    raise StorageError(
                        f"the record must be whole: bytes {file.tell()} to {int(name)} are missing",
                        file=folder,
                        remedy="restore the folder",
                    )
                file.write(read(join(folder, name)))
    except OSError as error:
        raise refusal(folder, error) from error
    return bool(names)
