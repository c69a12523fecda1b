"""Kill parts of a sweep at random moments and see that nothing is lost: 20 faults, seeded, a line each.

Every fault strikes a sweep of 12 trials of its own; where the driver ends by it, ``--resume`` takes the sweep on. What
is left must be what a sweep that nobody disturbed leaves: 12 trials, 12 finished runs in MLflow, every history whole
and without doubles, and every evaluation the same to the last bit.

    python benchmarks/chaos.py --faults 20 --seed 0 --workers 2,4
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

PROJECT = Path(__file__).resolve().parents[1]
TIMES = {"samples_per_second", "step_ms", "data_wait_fraction", "peak_memory_bytes"}
TRIALS = 12
SPACE: dict[str, Any] = {
    "name": "chaos",
    "task": {"name": "digits", "hidden": 32},
    "budget": {"samples": 16000, "eval_every": 2000},
    "objective": {"kind": "best_metric", "metric": "val/loss"},
    "optimizer": {"name": "AdamW"},
    "lr": {"base": 0.003, "warmup": 0, "decay": "none"},
    "search": {"trials": TRIALS, "sampler": "tpe", "startup_trials": 4, "early_stopping": "none"},
    "space": {"batch.global": [16, 32, 64], "lr.base": {"low": 0.0005, "high": 0.01, "log": True}},
}
EVALUATIONS = TRIALS * 8
# Titles of processes by what they are; Tune's light actor has one of two.
TITLES = {
    "mailbox": ("ray::MailboxActor",),
    "tune actor": ("ray::ResourceTrainable", "ray::LeasedTrial"),
    "controller": ("ray::TrainController",),
}
KINDS = ("one rank", "all ranks", "mailbox", "tune actor", "driver", "controller")


@dataclass(frozen=True)
class Fault:
    """Kill `kind` after `evaluations` of the sweep and `delay_s` more; `every_s` between its checkpoints."""

    kind: str
    evaluations: int
    delay_s: float
    workers: int
    every_s: float


class Sweep:
    """A sweep in a process of its own, in `folder`; its run directory is `out`, or in there too."""

    def __init__(self, folder: Path, workers: int, every_s: float, *, out: Path | None = None, **sections: Any) -> None:
        folder.mkdir(parents=True)
        self.folder, self.out = folder, out or folder / "run"
        self.uri = f"sqlite:///{folder / 'mlflow.db'}"
        cluster = {"workers": workers, "gangs": 1, "cpus_per_worker": 2 / workers if workers > 2 else 1.0}
        spec = {**SPACE, "cluster": cluster, "checkpoint": {"every_s": every_s}, "tracking": {"uri": self.uri}}
        spec |= sections
        (folder / "space.yaml").write_text(yaml.safe_dump(spec))
        self.process = self._start(str(folder / "space.yaml"), "--out", str(self.out))

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self._start_module("orchestrator.sweep", *arguments)

    def _start_module(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))}
        environment |= {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
        with (self.folder / "output.txt").open("a") as output:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=environment, stdout=output, stderr=output, cwd=self.folder, start_new_session=True,
            )  # fmt: skip

    def events(self) -> list[dict[str, Any]]:
        """The record so far."""
        path = self.out / "events.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def wait_for(self, condition: Callable[[list[dict[str, Any]]], bool], timeout_s: float = 300.0) -> None:
        """Until the record meets `condition`, or the sweep has ended."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline and not condition(self.events()):
            time.sleep(0.02)

    def victims(self, kind: str) -> list[psutil.Process]:
        """The processes that a fault of that kind kills."""
        if kind == "driver":
            return [psutil.Process(self.process.pid)] if self.process.poll() is None else []
        if kind in ("one rank", "all ranks"):
            started = [event for event in self.events() if event["event"] == "gang_started"]
            pids = [worker["pid"] for worker in started[-1]["workers"]] if started else []
            return [
                psutil.Process(pid) for pid in (pids[-1:] if kind == "one rank" else pids) if psutil.pid_exists(pid)
            ]
        return [p for p in self.family() if any(title in _title(p) for title in TITLES[kind])][:1]

    def family(self) -> list[psutil.Process]:
        """All processes that the sweep started."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def finish(self, timeout_s: float = 300.0) -> tuple[int, bool]:
        """Wait for the end, taking the sweep on if it was cut: the last exit code, and whether it was taken on."""
        code = self.process.wait(timeout_s)
        if code == 0:
            return code, False
        self.process = self.take_on()
        return self.process.wait(timeout_s), True

    def take_on(self, *arguments: str) -> subprocess.Popen[bytes]:
        """The process that takes the sweep on."""
        return self._start("--resume", str(self.out), *arguments)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def strike(sweep: Sweep, fault: Fault) -> int:
    """Wait for the fault's moment and kill; how many processes were hit."""
    if fault.evaluations:
        sweep.wait_for(lambda events: sum(e["event"] == "evaluation" for e in events) >= fault.evaluations)
    else:  # while it starts: as soon as there is something of that kind
        sweep.wait_for(lambda events: bool(sweep.victims(fault.kind)) and bool(events))
    time.sleep(fault.delay_s)
    hit = 0
    for victim in sweep.victims(fault.kind):
        try:
            victim.send_signal(signal.SIGKILL)
            hit += 1
        except psutil.NoSuchProcess:
            pass
    return hit


def histories(events: list[dict[str, Any]]) -> dict[str, list[tuple[int, dict[str, float]]]]:
    """By parameters: samples seen and everything measured there that is not a time."""
    params = {e["trial"]: json.dumps(e["params"], sort_keys=True) for e in events if e["event"] == "trial_started"}
    found: dict[str, list[tuple[int, dict[str, float]]]] = {text: [] for text in params.values()}
    for event in events:
        if event["event"] == "evaluation":
            metrics = {name: value for name, value in event["metrics"].items() if name not in TIMES}
            found[params[event["trial"]]].append((event["samples_seen"], metrics))
    return found


def faults_of(sweep: Sweep, undisturbed: dict[str, list[tuple[int, dict[str, float]]]]) -> list[str]:
    """What is not as it should be; empty if all is well."""
    events, wrong = sweep.events(), []
    ended = Counter(event["status"] for event in events if event["event"] == "trial_ended")
    if ended != Counter(completed=len(undisturbed)):
        wrong.append(f"trials ended {dict(ended)}")
    started = [json.dumps(e["params"], sort_keys=True) for e in events if e["event"] == "trial_started"]
    if len(started) != len(set(started)):
        wrong.append("parameters suggested twice")
    found = histories(events)
    if set(found) != set(undisturbed):
        wrong.append(f"{len(set(found) - set(undisturbed))} suggestions differ")
    for text, history in found.items():
        steps = [samples for samples, _ in history]
        if steps != sorted(set(steps)):
            wrong.append(f"steps {steps}")
        elif text in undisturbed and history != undisturbed[text]:
            wrong.append(f"another history: {text}")
    return wrong + _wrong_runs(sweep, found)


def _wrong_runs(sweep: Sweep, found: dict[str, list[tuple[int, dict[str, float]]]]) -> list[str]:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=sweep.uri)
    (experiment,) = [e for e in client.search_experiments() if e.name == SPACE["name"]]
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    children = [run for run in runs if run.data.tags.get("orchestrator.kind") == "trial"]
    states = Counter(run.info.status for run in children)
    wrong = [] if states == Counter(FINISHED=len(found)) else [f"MLflow runs {dict(states)}"]
    logged = sorted(
        tuple((p.step, p.value) for p in sorted(client.get_metric_history(run.info.run_id, "val/loss"), key=_step))
        for run in children
    )
    expected = sorted(tuple((step, metrics["val/loss"]) for step, metrics in history) for history in found.values())
    return wrong if logged == expected else [*wrong, "MLflow's histories differ from the record"]


def _step(point: Any) -> int:
    return int(point.step)


def main() -> int:
    """Run the faults; 3 if anything was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", default="2,4", help="workers of a gang, in turn")
    chosen = parser.parse_args()
    draw = random.Random(chosen.seed)
    sizes = [int(size) for size in chosen.workers.split(",")]
    good = 0
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        undisturbed = {}
        for size in sizes:
            calm = Sweep(Path(scratch) / f"calm-{size}", size, 30.0)
            calm.finish()
            undisturbed[size] = histories(calm.events())
        for number in range(chosen.faults):
            fault = Fault(
                kind=KINDS[number % len(KINDS)],
                evaluations=draw.choice([0, *(draw.randrange(1, EVALUATIONS - 4) for _ in range(5))]),
                delay_s=draw.uniform(0, 0.3),
                workers=sizes[number // len(KINDS) % len(sizes)],
                every_s=draw.choice([0.0, 30.0]),
            )
            began = time.monotonic()
            sweep = Sweep(Path(scratch) / str(number), fault.workers, fault.every_s)
            hit = strike(sweep, fault)
            code, resumed = sweep.finish()
            wrong = [*(faults_of(sweep, undisturbed[fault.workers])), *([f"exit code {code}"] if code else [])]
            wrong += [] if hit else ["nobody was hit"]
            good += not wrong
            at = [event["from_samples"] for event in sweep.events() if event["event"] == "trial_continued"]
            print(
                f"{number:2d} {fault.kind:10s} x{hit} after {fault.evaluations:2d} evaluations,",
                f"{fault.workers} workers, checkpoints every {fault.every_s:g} s:",
                f"{'resumed' if resumed else 'went on'}{f' at {at} samples' if at else ''},",
                f"{time.monotonic() - began:.0f} s, {'identical' if not wrong else 'WRONG: ' + '; '.join(wrong)}",
                flush=True,
            )
            if wrong:
                print((sweep.folder / "output.txt").read_text()[-2000:], flush=True)
    print(f"{good} of {chosen.faults}")
    return 0 if good == chosen.faults else 3


if __name__ == "__main__":
    sys.exit(main())
