"""The house's rules, held by tests: imports point one way, modules stay small, heavy frameworks stay in their rooms."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "orchestrator"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))

# Which rooms a room may import from, beside `credentials`. Entry points are the modules directly in the package.
ALLOWED = {
    "credentials": set(),
    "errors": set(),
    "theory": {"errors"},
    "storage": {"errors"},
    "mirror": {"errors", "storage"},
    "config": {"errors", "theory"},
    "training": {"errors", "theory", "config", "storage"},
    "tasks": {"errors", "theory", "config", "training"},
    "cluster": {"errors", "theory", "config", "storage", "training", "tasks"},
    "search": {"errors", "theory", "config", "training", "tasks", "mirror"},
    "tracking": {"errors", "theory", "config", "storage", "mirror", "training", "tasks"},
    "report": {"errors", "theory", "config", "storage", "training", "tasks", "search", "tracking"},
}
FORBIDDEN = {
    "theory": {"torch", "ray", "optuna", "mlflow", "pydantic"},
    "config": {"torch", "ray", "optuna", "mlflow"},
    "training": {"ray", "mlflow", "optuna"},
    "tasks": {"ray", "mlflow", "optuna"},
    "report": {"torch", "ray", "mlflow"},
    "tracking": {"torch", "ray"},
}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module or ""


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path)
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "orchestrator" and len(parts) > 1 and room in ALLOWED and parts[1] != room:
            assert parts[1] in ALLOWED[room] | {"credentials"}, f"{room} must not import {name}"
        assert parts[0] not in FORBIDDEN.get(room, set()), f"{room} must not import {name}"
        assert parts[0] not in {"search_spaces", "jobs", "tests", "benchmarks"}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("orchestrator.theory.noise_scale", ("torch", "ray", "optuna", "mlflow", "pydantic")),
        ("orchestrator.config.check", ("torch", "ray", "optuna", "mlflow")),
        ("orchestrator.training.loop", ("ray", "mlflow", "optuna")),
        ("orchestrator.tracking.tracker", ("torch", "ray", "mlflow")),
        ("orchestrator.sweep", ("torch", "ray", "optuna", "mlflow")),
        ("orchestrator.study.__main__", ("torch", "ray", "optuna", "mlflow")),
    ],
)
def test_what_is_loaded_with_a_module(module: str, absent: tuple[str, ...]) -> None:
    """`sys.modules` shows what a static look misses: an import of an import."""
    code = f"import sys, {module}; print(*[name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout.split() == []


def test_modules_are_small() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in MODULES}
    assert {str(path): n for path, n in lengths.items() if n > 400} == {}
    assert statistics.median(lengths.values()) <= 150


def test_every_module_says_what_it_is() -> None:
    texts = {path: path.read_text() for path in MODULES}
    assert [path for path, text in texts.items() if text.strip() and not ast.get_docstring(ast.parse(text))] == []
