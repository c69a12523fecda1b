"""What a run was made with: package versions, git commit, hardware. Nothing heavy is imported to find out."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import platform
import re
import subprocess
from pathlib import Path

PACKAGES = ("torch", "numpy", "ray", "optuna", "mlflow")
# Our own rooms whose code decides what a trial computes; a task's source has a hash of its own.
_DECIDING = ("config", "theory", "training")


def software_versions(cwd: str | Path | None = None) -> dict[str, str | None]:
    """Versions by the name of ``software/*`` keys; None where there is none. `cwd` is where the git commit is read."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {**versions, "orchestrator": own_version(), "cuda": _cuda_version(), "git_commit": git_commit(cwd)}


def own_version() -> str:
    """Our own version, and 8 hex digits that change with the code that trains, such as ``0.1.0+1a2b3c4d``."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for room in _DECIDING for path in (package / room).rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    try:
        version = importlib.metadata.version("batch-orchestrator")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that was not installed
        version = "0"
    return f"{version}+{digest.hexdigest()[:8]}"


def git_commit(cwd: str | Path | None = None) -> str | None:
    """The commit of the work tree at `cwd`, with ``+changes`` if tracked files differ from it; None outside of git."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=cwd, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    changes = git("status", "--porcelain", "--untracked-files=no") if commit else None
    return f"{commit}+changes" if commit and changes else commit


def cpu_name() -> str:
    """The processor's model name, or its architecture where the system does not tell."""
    try:
        models = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        models = []
    return models[0].strip() if models else platform.machine()


def _cuda_version() -> str | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text()
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=]*=\s*'([^']+)'", text, re.MULTILINE)
    return found.group(1) if found else None
