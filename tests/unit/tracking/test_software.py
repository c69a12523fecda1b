from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import TaskError
from orchestrator.tracking.software import cpu_name, git_commit, software_versions
from orchestrator.tracking.task_source import task_source


def test_versions_are_those_of_the_installed_packages() -> None:
    def told(package: str, file: str) -> dict[str, Any]:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        return runpy.run_path(str(Path(spec.origin).parent / file))

    versions = software_versions()
    assert versions["torch"] == told("torch", "version.py")["__version__"]
    assert versions["cuda"] == told("torch", "version.py")["cuda"]
    assert versions["ray"] == told("ray", "_version.py")["version"]
    assert versions["mlflow"] == told("mlflow", "version.py")["VERSION"]
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys\n"
        "import orchestrator.tracking.tracker, orchestrator.tracking.results, orchestrator.tracking.software as s\n"
        "s.software_versions()\n"
        "print([name for name in ('torch', 'ray', 'mlflow', 'optuna') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_commit_says_when_files_differ_from_it(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True, capture_output=True
        )

    assert git_commit(tmp_path) is None
    git("init")
    (tmp_path / "f").write_text("1")
    git("add", "f")
    git("commit", "-m", "x")
    commit = git_commit(tmp_path)
    assert commit is not None
    assert len(commit) == 40
    (tmp_path / "f").write_text("2")
    assert git_commit(tmp_path) == f"{commit}+changes"


def test_the_processor_has_a_name() -> None:
    assert cpu_name()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mine_of_tests"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "task.py").write_text("import json\nimport numpy\nfrom . import parts\nfrom .layers import Layer\n")
    (folder / "parts.py").write_text("SIZE = 3\n")
    (folder / "layers.py").write_text("from mine_of_tests.deep import x\nclass Layer: ...\n")
    (folder / "deep.py").write_text("x = 1\n")
    (folder / "unused.py").write_text("y = 1\n")
    (folder / "inner").mkdir()
    (folder / "inner" / "__init__.py").write_text("from mine_of_tests.beneath import w\n")
    (folder / "inner" / "leaf.py").write_text("")
    (folder / "beneath.py").write_text("w = 1\n")
    (tmp_path / "single_of_tests.py").write_text("import beside_of_tests\nimport json\n")
    (tmp_path / "beside_of_tests.py").write_text("z = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_source_holds_what_the_task_imports_from_its_own_package(package: Path) -> None:
    files, digest = task_source("mine_of_tests.task")
    assert set(files) == {f"mine_of_tests/{name}.py" for name in ("__init__", "task", "parts", "layers", "deep")}
    assert len(digest) == 16
    (package / "unused.py").write_text("y = 2\n")
    assert task_source("mine_of_tests.task")[1] == digest
    (package / "deep.py").write_text("x = 2\n")
    assert task_source("mine_of_tests.task")[1] != digest


def test_source_holds_the_packages_around_a_module_whose_code_runs_with_it(package: Path) -> None:
    files, _ = task_source("mine_of_tests.inner.leaf")
    inside = ("__init__", "inner/__init__", "inner/leaf", "beneath")
    assert set(files) == {f"mine_of_tests/{name}.py" for name in inside}


def test_source_of_a_single_file_holds_what_lies_beside_it(package: Path) -> None:
    files, _ = task_source("single_of_tests")
    assert set(files) == {"single_of_tests.py", "beside_of_tests.py"}


@pytest.mark.parametrize("name", ["no_such_module_of_tests", "no.such", "sys"])
def test_a_module_without_source_is_refused(name: str) -> None:
    with pytest.raises(TaskError, match=r"task\.name"):
        task_source(name)
