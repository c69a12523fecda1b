"""A cluster of two nodes that do not share a disk: a run directory on one of them is refused before anything starts.

The second node lives in a mount namespace of its own, in which another disk lies over the folder.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_job import free_ports

RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def can_unshare() -> bool:
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[dict[str, str], Path]]:
    """The environment of a driver, and a folder that the second node sees as an empty one."""
    if not can_unshare():
        pytest.skip("mount namespaces need root")
    scratch = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
    folder = scratch / "disk"
    folder.mkdir()
    gcs, *ports = free_ports(5)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "OMP_NUM_THREADS": "1"}
    start = [*RAY, "start", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=1", "--disable-usage-stats"]
    head = [*start, "--head", f"--port={gcs}", "--include-dashboard=false", f"--temp-dir={scratch / 'ray'}"]
    ours = [f"--metrics-export-port={ports[0]}", f"--dashboard-agent-listen-port={ports[1]}"]
    theirs = [f"--metrics-export-port={ports[2]}", f"--dashboard-agent-listen-port={ports[3]}"]
    apart = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(folder)]
    log = (scratch / "ray.log").open("w")
    nodes = [subprocess.Popen([*head, *ours], env=environment, stdout=log, stderr=log, start_new_session=True)]
    address = f"127.0.0.1:{gcs}"
    try:
        wait_until(lambda: nodes_of(address, environment) == 1, scratch)
        second = [*apart, *start, f"--address={address}", *theirs]
        nodes.append(subprocess.Popen(second, env=environment, stdout=log, stderr=log, start_new_session=True))
        wait_until(lambda: nodes_of(address, environment) == 2, scratch)
        yield {**environment, "RAY_ADDRESS": address}, folder
    finally:
        for node in reversed(nodes):
            node.send_signal(signal.SIGINT)
            try:
                node.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)
        log.close()
        shutil.rmtree(scratch, ignore_errors=True)


def nodes_of(address: str, environment: dict[str, str]) -> int:
    code = "import ray, sys; ray.init(sys.argv[1], logging_level=40); print(sum(n['Alive'] for n in ray.nodes()))"
    asked = subprocess.run(
        [sys.executable, "-c", code, address], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return int(asked.stdout.split()[-1]) if asked.returncode == 0 else 0


def wait_until(condition: Callable[[], bool], scratch: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.5)
    pytest.fail((scratch / "ray.log").read_text()[-2000:])


def test_a_run_directory_that_one_node_does_not_see_is_refused(
    cluster: tuple[dict[str, str], Path], tmp_path: Path
) -> None:
    environment, folder = cluster
    sweep = [sys.executable, "-m", "orchestrator.sweep", "--out", str(folder / "run")]
    sweep += ["--set", "search.trials=1", "--set", f"tracking.uri=sqlite:///{tmp_path / 'm.db'}"]
    project = Path(__file__).resolve().parents[2]
    done = subprocess.run(sweep, env=environment, capture_output=True, text=True, timeout=120, check=False, cwd=project)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "is not seen on" in done.stderr
    assert "s3://" in done.stderr
    assert not list((folder / "run").glob("*"))
