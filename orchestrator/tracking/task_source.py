"""The task's own source code, as text and hash: what a run was trained with, when the code has moved on."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.errors import TaskError


def task_source(module_name: str) -> tuple[dict[str, str], str]:
    """The source of a task's module and of what it imports from its own package or folder.

    Args:
        module_name: dotted name of the importable module, such as ``orchestrator.tasks.digits``.

    Returns:
        File texts by path (``package/module.py``), and 16 hex digits of the SHA-256 over all of them. Code of other
        packages is left out: their versions are recorded instead.

    Raises:
        TaskError: if the module cannot be found or is not Python source.
    """
    root = _source_of(module_name)
    if root is None:
        raise TaskError(
            "the task's module must be importable Python source",
            key="task.name",
            value=module_name,
            remedy="name a module as module:Class and start from the folder that holds it",
        )
    found: dict[str, Path] = {module_name: root}
    waiting = [module_name]
    while waiting:
        name = waiting.pop()
        for imported in (*_packages(name), *_imports(found[name], name)):
            if imported not in found and (path := _own_module(imported, module_name, root)) is not None:
                found[imported] = path
                waiting.append(imported)
    files = {_relative(name, path): path.read_text(encoding="utf-8") for name, path in found.items()}
    return files, source_hash(files)


def source_hash(files: Mapping[str, str]) -> str:
    """16 hex digits of the SHA-256 over the names and texts of `files`."""
    digest = hashlib.sha256()
    for name, text in sorted(files.items()):
        digest.update(f"{name}\0{len(text)}\0{text}".encode())
    return digest.hexdigest()[:16]


def _own_module(name: str, task_module: str, task_path: Path) -> Path | None:
    """The file of `name` if it belongs to the task's package or, for a single file, lies beside it."""
    if "." in task_module:
        return _source_of(name) if name.split(".")[0] == task_module.split(".")[0] else None
    path = _source_of(name) if "." not in name else None
    return path if path is not None and path.parent == task_path.parent else None


def _source_of(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _packages(name: str) -> Iterator[str]:
    """The packages that hold a module: importing it runs their code too."""
    parts = name.split(".")
    yield from (".".join(parts[:i]) for i in range(1, len(parts)))


def _imports(path: Path, name: str) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _relative(name: str, path: Path) -> str:
    parts = name.split(".")
    return "/".join([*parts, "__init__.py"] if path.name == "__init__.py" else [*parts[:-1], f"{parts[-1]}.py"])
