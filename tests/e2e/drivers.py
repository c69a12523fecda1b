"""Drivers in processes of their own, which a test stops or kills together with the MLflow writer they started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).resolve().parents[1]
BEGINNING = """
import os, signal, sys, time
from pathlib import Path
from tracking_samples import Sweep
from orchestrator.tracking.events import EventLog
from orchestrator.tracking.tracker import Tracker

log = EventLog(sys.argv[1])
tracker = Tracker(log, uri=sys.argv[2], experiment="digits")
sweep = Sweep(log)

def until_sent():
    while tracker.left().events:
        time.sleep(0.05)
"""


class Driver:
    """A process that runs `BEGINNING` and then `code` on a run directory."""

    def __init__(self, run_dir: Path, uri: str, code: str) -> None:
        folders = [str(TESTS.parent), str(TESTS / "unit" / "tracking")]
        self._process = subprocess.Popen(
            [sys.executable, "-c", BEGINNING + code, str(run_dir / "events.jsonl"), uri],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def hear(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def family(self) -> list[psutil.Process]:
        """The driver and everything that it started."""
        driver = psutil.Process(self._process.pid)
        return [driver, *driver.children(recursive=True)]

    def stop_job(self, wait_s: float = 3.0) -> None:
        """What `ray job stop` does: SIGTERM to the family, and SIGKILL to those that are left `wait_s` later."""
        family = self.family()
        for process in family:
            process.terminate()
        _, left = psutil.wait_procs(family, wait_s)
        self._kill(left)

    def kill(self) -> None:
        """SIGKILL to the whole family, writer first."""
        self._kill(list(reversed(self.family())))

    def wait(self) -> int:
        """Its exit code."""
        return self._process.wait()

    def wait_or_none(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    def _kill(self, processes: list[Any]) -> None:
        for process in processes:
            process.kill()
        psutil.wait_procs(processes)
        self._process.wait()
