"""Step time while the MLflow server is away, over step time while it is there, alternating within one training.

One long digits trial of a real sweep (a gang of two workers), its evaluations durable and sent to a real ``mlflow
server``. Its port is closed and opened again every few seconds; at last the server is killed for a minute.
``python benchmarks/mlflow_away.py [--rounds 8] [--period-s 8] [--outage-s 60]``
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from orchestrator.tracking.cursor import cursor_path, load_cursor

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "tests" / "e2e"))

from mlflow_server import Server, free_port, wait_until  # noqa: E402

SETTINGS = {
    "space": "{}",
    "search.trials": 1,
    "search.startup_trials": 1,
    "search.early_stopping": "none",
    "search.sampler": "grid",
    "budget.samples": 1_000_000_000,
    "budget.eval_every": 4096,
    "batch.global": 64,
    "lr.base": 0.01,
    "lr.decay": "none",
    "cluster.gangs": 1,
}
MARGIN_S = 0.5  # after a change, which belongs to neither state
Span = tuple[float, float]


class Door:
    """A port that leads to the server while it is open, and refuses like a server that is not there while it is not."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Let connections through."""
        self._socket = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, args=(self._socket,), daemon=True).start()

    def close(self) -> None:
        """Refuse connections; those that are through stay."""
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None

    def _serve(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                outside, _ = listening.accept()
                try:
                    inside = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    outside.close()
                    continue
                for pair in ((outside, inside), (inside, outside)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._socket is None:
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def evaluations(run: Path) -> list[dict[str, Any]]:
    """The evaluations of the run so far, oldest first."""
    log = run / "events.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == "evaluation"]


def span(seconds: float) -> Span:
    """Let that much time pass; from when to when, in unix seconds."""
    time.sleep(MARGIN_S)
    began = time.time()
    time.sleep(seconds)
    return began, time.time()


def medians(found: list[dict[str, Any]], spans: list[Span]) -> tuple[float, float]:
    """Milliseconds of an update within `spans`: of training alone, and with evaluation, report and fsync."""
    steps: list[float] = []
    wholes: list[float] = []
    for began, ended in spans:
        inside = [event for event in found if began <= event["t"] <= ended]
        steps += [event["metrics"]["step_ms"] for event in inside]
        wholes += [1000 * (b["t"] - a["t"]) / (b["updates"] - a["updates"]) for a, b in itertools.pairwise(inside)]
    return statistics.median(steps), statistics.median(wholes)


def measure(server: Server, door: Door, run: Path, chosen: argparse.Namespace) -> None:
    """Close and open the door, kill the server once, and print what that did to the steps."""
    cursor = cursor_path(run / "events.jsonl")

    def caught_up() -> bool:
        return load_cursor(cursor).problem is None

    wait_until("MLflow to have points", lambda: server.database.rows("SELECT 1 FROM metrics WHERE key = 'val/loss'"))
    pairs: list[tuple[Span, Span]] = []
    for _ in range(chosen.rounds):
        there = span(chosen.period_s)
        door.close()
        wait_until("the writer to notice", lambda: not caught_up())
        away = span(chosen.period_s)
        door.open()
        wait_until("the writer to go on", caught_up)
        pairs.append((there, away))
    before = span(chosen.outage_s / 2)
    server.stop()
    long_away = span(chosen.outage_s)
    server.start()
    wait_until("the writer to go on", caught_up)
    after = span(chosen.outage_s / 2)
    found = evaluations(run)
    print(f"{'':34}{'step':>8}{'whole update':>14}")
    ratios = []
    for there, away in pairs:
        ratios.append([b / a for a, b in zip(medians(found, [there]), medians(found, [away]), strict=True)])
    steps, wholes = zip(*ratios, strict=True)
    print(f"{f'port closed, {len(pairs)} x {chosen.period_s:g} s: median':34}", end="")
    print(f"{statistics.median(steps):>8.3f}{statistics.median(wholes):>14.3f}")
    print(f"{'  smallest and largest':34}{min(steps):>8.3f}{min(wholes):>14.3f}")
    print(f"{'':34}{max(steps):>8.3f}{max(wholes):>14.3f}")
    there_ms, away_ms = medians(found, [before, after]), medians(found, [long_away])
    print(f"{f'server killed for {chosen.outage_s:g} s':34}{away_ms[0] / there_ms[0]:>8.3f}", end="")
    print(f"{away_ms[1] / there_ms[1]:>14.3f}    ({there_ms[0]:.2f} ms a step with it)")


def main() -> None:
    """Run one sweep against a server that comes and goes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--period-s", type=float, default=8.0)
    parser.add_argument("--outage-s", type=float, default=60.0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server, run = Server(Path(folder)), Path(folder) / "run"
        server.start()
        door = Door(server.port)
        door.open()
        argv = [sys.executable, "-m", "orchestrator.sweep", str(PROJECT / "search_spaces" / "digits.yaml")]
        for key, value in {**SETTINGS, "tracking.uri": f"http://127.0.0.1:{door.port}"}.items():
            argv += ["--set", f"{key}={value}"]
        with (Path(folder) / "sweep.log").open("w+") as output:
            sweep = subprocess.Popen([*argv, "--out", str(run)], cwd=PROJECT, stdout=output, stderr=output)
            try:
                measure(server, door, run, chosen)
            except AssertionError:
                output.seek(0)
                print(output.read()[-3000:], file=sys.stderr)
                raise
            finally:
                sweep.send_signal(signal.SIGINT)
                sweep.wait(180)
                server.stop()


if __name__ == "__main__":
    main()
