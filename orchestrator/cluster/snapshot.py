"""Source texts made importable for a while, before anything of the same name: how a recorded task is trained again."""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType

from orchestrator.errors import TaskError


def modules_of(files: Mapping[str, str]) -> frozenset[str]:
    """The top-level names that `files` (texts by ``package/module.py``) make importable."""
    return frozenset(PurePosixPath(name).parts[0].removesuffix(".py") for name in files)


@contextlib.contextmanager
def imported_first(files: Mapping[str, str]) -> Iterator[None]:
    """Let `files` be what is imported by their names; afterwards everything is as it was. Nothing for no files.

    Raises:
        TaskError: a name leads out of the folder that they are written to.
    """
    if not files:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="orchestrator-task-") as folder:
        for name, text in files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise TaskError("a source file must lie in its folder", key="task_source", value=name)
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        shadowed = _take_out(modules_of(files))
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(folder)
            _take_out(modules_of(files))
            sys.modules.update(shadowed)


def _take_out(tops: frozenset[str]) -> dict[str, ModuleType]:
    """Forget what was imported under the top-level names `tops`; returns it."""
    names = [name for name in sys.modules if name.partition(".")[0] in tops]
    return {name: sys.modules.pop(name) for name in names}
