"""Runs the whole probe on a real GPU and holds what it says against what the device does; refuses to pass without one.

    python benchmarks/gpu_check.py

Checked, for a perceptron, a transformer and a residual network with batch norm: the predicted peak of an update
within 10 % of ``torch.cuda.max_memory_allocated``, with activation checkpointing and an offloaded optimizer too; that
the micro batch which the finder tries out trains, in a sweep of one trial. Exit codes: 0 all held, 1 something did
not, 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT), str(PROJECT / "tests" / "unit" / "training")]

from memory_tasks import SmallResNet  # noqa: E402
from test_memory_prediction import spec_of  # noqa: E402

from orchestrator.config.trial import TaskRef, TrialSpec  # noqa: E402
from orchestrator.theory.batch_finder import Order  # noqa: E402
from orchestrator.theory.memory_use import MemoryUse  # noqa: E402
from orchestrator.training.batch_try import try_batch  # noqa: E402
from orchestrator.training.group import Solo  # noqa: E402
from orchestrator.training.memory import release  # noqa: E402
from orchestrator.training.memory_prediction import predict_memory  # noqa: E402
from orchestrator.training.registry import load_task  # noqa: E402
from orchestrator.training.task import Task  # noqa: E402

WITHIN = 0.1
ROOM = 0.9  # of the free memory
BYTES = {"width": 512, "layers": 6, "heads": 8, "context": 256, "val_windows": 64}


def tasks() -> Iterator[tuple[str, TrialSpec, Task, str]]:
    """Name, trial, task, and the class of modules whose activations may be checkpointed."""
    options: dict[str, Any] = {"hidden": 4096, "depth": 4}
    spec = replace(spec_of(micro=512), task=TaskRef(name="digits", options=options))
    yield "digits", spec, load_task("digits", options), ""
    spec = replace(spec_of(micro=32), task=TaskRef(name="bytes", options=BYTES))
    yield "bytes", spec, load_task("bytes", BYTES), "_Block"
    yield (
        "resnet",
        replace(spec_of(micro=256), task=TaskRef(name="memory_tasks:SmallResNet")),
        SmallResNet(),
        "Residual",
    )


def variants(cls: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Changes of a trial that a prediction must follow."""
    yield "plain", {}
    yield "bf16", {"precision": "bf16"}
    yield "offloaded", {"offload_optimizer": True}
    if cls:
        yield "checkpointed", {"checkpoint_activations": cls}


def peaks(device: torch.device) -> Iterator[tuple[str, MemoryUse, int]]:
    """What was predicted, and what the device held above what it held before."""
    for name, spec, task, cls in tasks():
        for variant, changes in variants(cls):
            trial = replace(spec, eval_batch=8, reducer="flat", **changes)
            predicted = predict_memory(trial, task)
            release(device)
            before = torch.cuda.memory_allocated(device)
            order = Order(micro_batch=trial.plan.micro_batch, eval_batch=8, updates=3)
            seen = try_batch(trial, task, Solo(device), order, room_bytes=torch.cuda.mem_get_info(device)[0])
            if not seen.fits:
                raise SystemExit(f"{name} {variant}: {seen.message}")
            yield f"{name} {variant}", predicted, seen.peak_bytes - before


def probe(folder: Path, limit: str) -> dict[str, Any]:
    """The summary of a probe of the byte transformer within a limit, by its command line."""
    spec = {
        "task": {"name": "bytes", **BYTES},
        "optimizer": {"name": "AdamW"},
        "cluster": {"workers": 1, "gpus_per_worker": 1.0, "device_memory": limit},
        "probe": {"rounds": 2, "seconds": 0.3, "memory": "measure"},
    }
    run("probe", spec, folder, "probe")
    found: dict[str, Any] = json.loads((folder / "probe" / "summary.json").read_text())
    return found


def run(module: str, spec: dict[str, Any], folder: Path, name: str) -> int:
    """A command line of the product on a spec; its exit code."""
    spec = {**spec, "tracking": {"uri": f"sqlite:///{folder / 'mlflow.db'}"}}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", f"orchestrator.{module}", str(folder / f"{name}.yaml")]
    return subprocess.run([*command, "--out", str(folder / name)], cwd=PROJECT, check=False).returncode


def trains(micro: int, folder: Path) -> bool:
    """Whether a sweep of one trial at this micro batch completes without splitting it."""
    spec = {
        "task": {"name": "bytes", **BYTES},
        "optimizer": {"name": "AdamW"},
        "batch": {"global": micro, "micro": micro},
        "budget": {"samples": 3 * micro, "eval_every": 3 * micro},
        "lr": {"base": 0.001, "warmup": 0},
        "search": {"trials": 1, "sampler": "random"},
        "cluster": {"workers": 1, "gpus_per_worker": 1.0},
    }
    if run("sweep", spec, folder, f"trains{micro}"):
        return False
    events = map(json.loads, (folder / f"trains{micro}" / "events.jsonl").read_text().splitlines())
    (ended,) = [event for event in events if event["event"] == "trial_ended"]
    return bool(ended["outcome"]["plan"]["micro_batch"] == micro)


def main() -> int:
    """Print a table; 0 if all held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", default="8GiB", help="memory that the finder may use (default: %(default)s)")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU here: nothing was checked, and nothing passes", file=sys.stderr)
        return 2
    device = torch.device("cuda:0")
    print(f"device: {torch.cuda.get_device_name(device)}, torch {torch.__version__}")
    wrong = []
    for name, predicted, held in peaks(device):
        error = predicted.peak_bytes / held - 1.0
        told, found = (f"{size / 2**20:9.1f} MiB" for size in (predicted.peak_bytes, held))
        print(f"{name:<24} predicted {told}, held {found}: {error:+.1%}")
        if abs(error) > WITHIN:
            wrong.append(f"{name}: the prediction is off by {error:+.1%}")
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as name:
        summary = probe(Path(name), args.limit)
        memory, knees = summary["memory"], summary["knees"][0]
        micro = memory["micro_batch"]
        print(f"finder: micro batch {micro} ({memory['how']}), {len(memory['tries'])} tries")
        for row in summary["timings"]:
            used = "-" if row["utilisation"] is None else f"{row['utilisation']:.0%}"
            print(f"micro {row['micro_batch']:>6}: {1e3 * row['step_s']['value']:8.2f} ms, utilisation {used}")
        print(f"knees: {knees.get('doubling')}, {knees.get('ceiling')}")
        if memory["how"] != "measured" or not micro:
            wrong.append("the finder gave no micro batch")
        elif not trains(micro, Path(name)):
            wrong.append(f"micro batch {micro}, the finder's answer, does not train")
    for text in wrong:
        print(f"WRONG: {text}")
    print("all held" if not wrong else f"{len(wrong)} did not hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
