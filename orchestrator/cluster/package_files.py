"""What `ray job submit --working-dir` would upload: the files that Ray's own exclusion rules leave, and their size.

Ray's matching is used as it is, so that this answer can not drift from what Ray does.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ray._private import ray_constants
from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

PackagedFile = tuple[PurePosixPath, int]

UPLOAD_LIMIT_BYTES: int = ray_constants.DASHBOARD_CLIENT_MAX_SIZE
# A zip archive holds each name twice, in a local header and in the central directory, and one end record.
_ZIP_BYTES_PER_FILE = 30 + 46
_ZIP_END_BYTES = 22
_DOMINANT_SHARE = 0.8

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TooLarge:
    """A package over the upload limit; `largest` names the folders and files that weigh most, heaviest first."""

    package_bytes: int
    limit_bytes: int
    largest: tuple[PackagedFile, ...]


def packaged_files(root: Path, excludes: Sequence[str] = ()) -> list[PackagedFile]:
    """The files under `root` that travel to the cluster, as (path relative to `root`, bytes), sorted by path.

    Left out are, as in Ray: its default excludes, what `.gitignore` (unless ``RAY_RUNTIME_ENV_IGNORE_GITIGNORE=1``)
    and `.rayignore` name in any folder, and `excludes` in gitignore syntax. Nothing is read or written.

    Raises:
        OSError: if a folder can not be listed.
    """
    root = root.absolute()
    patterns = [*ray_constants.get_runtime_env_default_excludes(), *excludes]
    include_gitignore = os.environ.get(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
    found: list[PackagedFile] = []

    def collect(path: Path) -> None:
        if path.is_file():
            found.append((PurePosixPath(path.relative_to(root).as_posix()), path.stat().st_size))

    _dir_travel(root, [_get_excludes(root, patterns)], collect, include_gitignore=include_gitignore, logger=logger)
    return sorted(found)


def package_bytes(files: Sequence[PackagedFile]) -> int:
    """Bytes of the archive that Ray makes of `files`: it stores them without compression."""
    names = sum(len(str(path).encode()) for path, _ in files)
    contents = sum(size_bytes for _, size_bytes in files)
    return contents + 2 * names + _ZIP_BYTES_PER_FILE * len(files) + _ZIP_END_BYTES


def too_large(
    files: Sequence[PackagedFile], limit_bytes: int = UPLOAD_LIMIT_BYTES, *, name: int = 3
) -> TooLarge | None:
    """None if the archive of `files` is within `limit_bytes`, else its size and the `name` heaviest places."""
    total = package_bytes(files)
    if total <= limit_bytes:
        return None
    return TooLarge(package_bytes=total, limit_bytes=limit_bytes, largest=tuple(heaviest(files)[:name]))


def heaviest(files: Sequence[PackagedFile]) -> list[PackagedFile]:
    """The top-level folders and files by bytes, heaviest first, each narrowed to the subfolder that holds most of it.

    A folder is narrowed while one entry in it holds over 80 % of its bytes: to name `data/raw` says more than `data`.
    """
    children: dict[PurePosixPath, dict[PurePosixPath, int]] = defaultdict(lambda: defaultdict(int))
    for path, size_bytes in files:
        for child in (path, *path.parents[:-1]):
            children[child.parent][child] += size_bytes

    def narrowed(path: PurePosixPath, size_bytes: int) -> PackagedFile:
        while path in children:
            inner, inner_bytes = max(children[path].items(), key=lambda item: item[1])
            if inner_bytes < _DOMINANT_SHARE * size_bytes or inner not in children:
                break
            path, size_bytes = inner, inner_bytes
        return path, size_bytes

    top = sorted(children[PurePosixPath(".")].items(), key=lambda item: -item[1])
    return [narrowed(path, size_bytes) for path, size_bytes in top]
