"""A real MLflow server on loopback that a test can stop and start again, and what its database holds."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any


def wait_until(what: str, condition: Callable[[], Any], timeout_s: float = 90.0) -> Any:
    """The first true value of `condition`; the limit only keeps a broken test from hanging."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {timeout_s:g} s for {what}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Database:
    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path, timeout=30)
        try:
            return connection.execute(query, values).fetchall()
        finally:
            connection.close()

    def statuses(self) -> dict[str, str]:
        """Run status by trial id; the sweep's own by ``sweep``. Fails if a trial has two runs."""
        query = "SELECT t.value, r.status FROM runs r JOIN tags t USING (run_uuid) WHERE t.key = ?"
        found = [*self.rows(query, "orchestrator.trial")]
        found += [("sweep", status) for _, status in self.rows(f"{query} AND t.value = 'sweep'", "orchestrator.kind")]
        assert len(dict(found)) == len(found), found
        return dict(found)

    def steps(self, trial: str, metric: str) -> list[int]:
        """Steps in the order in which they were written."""
        query = (
            "SELECT m.step FROM metrics m JOIN tags t USING (run_uuid) "
            "WHERE t.key = 'orchestrator.trial' AND t.value = ? AND m.key = ? ORDER BY m.rowid"
        )
        return [step for (step,) in self.rows(query, trial, metric)]


class Server:
    def __init__(self, folder: Path) -> None:
        self.database = Database(folder / "server.db")
        self.fresh_database = folder / "fresh.db"
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        with (self._folder / "server.log").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)),
                    *("--workers", "1", "--backend-store-uri", f"sqlite:///{self.database.path}"),
                    *("--artifacts-destination", str(self._folder / "artifacts")),
                ],
                stdout=output,
                stderr=output,
                cwd=self._folder,
                env={
                    **os.environ,
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                    "DO_NOT_TRACK": "true",
                    # Its job queue starts eight processes that tracking does not need.
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                },
                start_new_session=True,
            )
        wait_until("the MLflow server", self._answers)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "server.log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False
