"""A sweep as a Ray job, end to end: a head with token authentication, a clean checkout, nothing installed in it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

PROJECT = Path(__file__).resolve().parents[2]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[str, dict[str, str]]]:
    """A head of two CPUs, started by hand and ended by its own process id: the dashboard's address, the environment."""
    gcs, dashboard, client, agent, metrics = free_ports(5)
    scratch = tempfile.mkdtemp(prefix="rj", dir="/tmp")  # short: Ray's sockets have long names
    token = secrets.token_hex(32)
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))}
    environment = {**outside, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "OMP_NUM_THREADS": "1"}
    command = [
        *RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={gcs}", "--num-cpus=2",
        "--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
        f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}",
        f"--metrics-export-port={metrics}", f"--temp-dir={scratch}", "--disable-usage-stats",
    ]  # fmt: skip
    log = open(f"{scratch}/head.log", "w")  # noqa: SIM115  closed below, after the process
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{dashboard}"
    try:
        wait_for(address, process, Path(log.name))
        yield address, environment
    finally:
        process.send_signal(signal.SIGINT)  # upon SIGTERM a head drains its node for half a minute first
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        log.close()
        shutil.rmtree(scratch, ignore_errors=True)


def wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/api/version", timeout=2)
        except urllib.error.HTTPError:
            return  # it answers, and wants the token
        except OSError:
            time.sleep(0.5)
        else:
            return
    pytest.fail(f"the head did not come up: {log.read_text()[-2000:]}")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What git tracks, in a new folder, beside results that must not travel."""
    folder = tmp_path / "checkout"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, check=True).stdout
    for name in tracked.decode().split("\0"):
        if name and (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, folder / name)
    (folder / "runs").mkdir()
    with open(folder / "runs" / "old.bin", "wb") as heavy:
        heavy.truncate(120 * 2**20)
    return folder


def test_a_sweep_runs_as_a_job(head: tuple[str, dict[str, str]], checkout: Path, tracking_uri: str) -> None:
    address, environment = head
    out = checkout.parent / "out"
    environment = {**environment, "PYTHONPATH": ""}
    settings = {
        "search.trials": 2, "search.startup_trials": 1, "budget.samples": 1000, "budget.eval_every": 500,
        "tracking.uri": tracking_uri,
    }  # fmt: skip
    sweep = [sys.executable, "-m", "orchestrator.sweep", "--out", str(out)]
    for key, value in settings.items():
        sweep += ["--set", f"{key}={value}"]
    submit = [sys.executable, "-m", "orchestrator.submit", "--address", address, "--", *sweep]
    done = subprocess.run(submit, cwd=checkout, env=environment, capture_output=True, text=True, timeout=170)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-4000:]
    assert "succeeded" in text
    assert str(out) in text
    assert (out / "summary.json").exists()
    client = mlflow.MlflowClient(tracking_uri)
    (experiment,) = client.search_experiments(filter_string="name = 'digits'")
    runs = client.search_runs([experiment.experiment_id], "attributes.run_name ILIKE 't000%'")
    assert len(runs) >= 2


def test_without_the_token_the_job_is_refused(head: tuple[str, dict[str, str]], checkout: Path) -> None:
    address, environment = head
    environment = {**environment, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    submit = [*RAY, "job", "submit", "--address", address, "--working-dir", ".", "--", "true"]
    done = subprocess.run(submit, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "token" in (done.stdout + done.stderr).lower()
