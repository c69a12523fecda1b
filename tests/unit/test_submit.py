from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from ray._private import ray_constants
from ray._private.runtime_env.packaging import create_package

from orchestrator import submit
from orchestrator.cluster.package_files import UPLOAD_LIMIT_BYTES, heaviest, package_bytes, packaged_files, too_large
from orchestrator.errors import ResourceError

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
SWEEP = ["--", "python", "-m", "orchestrator.sweep"]


@pytest.fixture(autouse=True)
def ray_defaults(monkeypatch):
    for name in ("RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES", ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path) -> Path:
    """A small project with this repository's .rayignore, and no .gitignore."""
    shutil.copy(ROOT / ".rayignore", tmp_path)
    write(tmp_path / "orchestrator" / "sweep.py", 100)
    return tmp_path


def write(path: Path, size_bytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.Random(0).randbytes(size_bytes))


def names(root: Path) -> set[str]:
    return {str(path) for path, _ in packaged_files(root)}


def test_120_mib_of_results_do_not_travel(project):
    write(project / "runs" / "digits-1" / "data.bin", 120 * MIB)
    assert names(project) == {".rayignore", "orchestrator/sweep.py"}
    assert too_large(packaged_files(project)) is None


def test_120_mib_elsewhere_are_refused_before_upload_naming_folder_and_size(project, capsys):
    write(project / "results" / "old" / "data.bin", 120 * MIB)
    assert submit.main(["--working-dir", str(project), *SWEEP]) == 2
    printed = capsys.readouterr()
    assert "results/old (120.0 MiB)" in printed.err
    assert "over the 100.0 MiB" in printed.err
    assert "Name in .rayignore" in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    "path",
    [
        "mlruns/0/meta.yaml", "mlartifacts/a", "mlflow.db", "sub/optuna.db", "mlflow.db-wal", "mlflow.db-shm",
        "data/train.parquet", ".git/config", ".venv/bin/python", "venv/bin/python", "orchestrator/__pycache__/a.pyc",
        ".cache/tokens.arrow", ".mypy_cache/a", ".ruff_cache/a", ".pytest_cache/a", ".hypothesis/a",
        "batch_orchestrator.egg-info/PKG-INFO",
    ],
)  # fmt: skip
def test_what_is_left_out(project, path):
    write(project / path, 10)
    assert names(project) == {".rayignore", "orchestrator/sweep.py"}


@pytest.mark.parametrize(
    "path", ["orchestrator/runs/a.py", "tests/test_a.py", "search_spaces/digits.yaml", "tasks/data/a.csv"]
)
def test_what_travels(project, path):
    write(project / path, 10)
    assert path in names(project)


def test_this_repository_travels_whole_and_small():
    files = packaged_files(ROOT)
    assert {PurePosixPath(p) for p in ("orchestrator/errors.py", "pyproject.toml")} <= {path for path, _ in files}
    assert package_bytes(files) < 10 * MIB


@pytest.mark.parametrize("ignore_gitignore", ["0", "1"])
def test_files_and_bytes_are_those_of_the_archive_that_ray_makes(project, monkeypatch, ignore_gitignore):
    monkeypatch.setenv(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE, ignore_gitignore)
    (project / ".gitignore").write_text("secret.txt\n/top.log\n")
    (project / "sub").mkdir()
    (project / "sub" / ".rayignore").write_text("*.bin\n!keep.bin\n")
    for path in (
        "secret.txt",
        "top.log",
        "sub/top.log",
        "sub/a.bin",
        "sub/keep.bin",
        "sub/ä.txt",
        "runs/a",
        ".git/config",
    ):
        write(project / path, 1_000)
    archive = project.parent / f"{project.name}.zip"
    create_package(
        str(project),
        archive,
        include_gitignore=ignore_gitignore != "1",
        excludes=ray_constants.get_runtime_env_default_excludes(),
    )
    with zipfile.ZipFile(archive) as opened:
        assert names(project) == set(opened.namelist())
    assert package_bytes(packaged_files(project)) == archive.stat().st_size
    assert ("secret.txt" in names(project)) == (ignore_gitignore == "1")


def test_ray_s_own_override_of_its_excludes_is_followed(tmp_path, monkeypatch):
    write(tmp_path / "venv" / "a", 10)
    assert names(tmp_path) == set()
    monkeypatch.setenv("RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES", "")
    assert names(tmp_path) == {"venv/a"}


def test_the_limit_is_the_upload_endpoint_s_and_is_itself_allowed():
    assert UPLOAD_LIMIT_BYTES == 100 * MIB
    files = [(PurePosixPath("a"), 1_000)]
    limit = package_bytes(files)
    assert too_large(files, limit) is None
    excess = too_large(files, limit - 1)
    assert excess is not None
    assert excess.package_bytes == limit


def test_the_heaviest_places_are_named_as_deep_as_one_folder_dominates():
    sizes = {"data/raw/a/1.bin": 50, "data/raw/b/2.bin": 45, "data/notes.txt": 5, "models/x.pt": 60, "readme": 1}
    files = [(PurePosixPath(path), size) for path, size in sizes.items()]
    assert [(str(path), size) for path, size in heaviest(files)] == [("data/raw", 95), ("models", 60), ("readme", 1)]


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(ResourceError, match=r"--working-dir = .*gone.*must be an existing folder"):
        submit.checked_files(tmp_path / "gone")


@pytest.mark.parametrize("arguments", [[], ["--"], ["python", "-m", "orchestrator.sweep"]])
def test_a_command_must_follow_the_two_dashes(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        submit.main(arguments)
    assert stopped.value.code == 2
    assert "--" in capsys.readouterr().err


def test_the_dry_run_names_what_would_be_uploaded_and_run(project, capsys):
    arguments = [
        "--address",
        "http://head:8265",
        "--working-dir",
        str(project),
        "--dry-run",
        *SWEEP,
        "--set",
        "lr.base=[1, 2]",
    ]
    assert submit.main(arguments) == 0
    text = capsys.readouterr().out
    assert "Uploading 2 files" in text
    assert f"job submit --address http://head:8265 --working-dir {project} -- python -m orchestrator.sweep" in text
    assert "'lr.base=[1, 2]'" in text


def test_output_and_exit_code_of_ray_are_passed_through(project):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        result = subprocess.run(
            [sys.executable, "-m", "orchestrator.submit", "--address", address, "--working-dir", str(project), *SWEEP],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 1
    assert f"Failed to connect to Ray at address: {address}" in result.stderr
