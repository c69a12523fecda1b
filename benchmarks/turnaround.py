"""Overhead of one more trial: the same trials on stock Ray Tune with a `TorchTrainer` each, and on a warm gang.

Overhead is the time from a trial's last update to the next trial's first update, by the clock of the machine that
trains; both sides train with the same loop, one after the other. ``python benchmarks/turnaround.py [--trials 6]``
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from orchestrator import sweep
from orchestrator.config.load import load_spec
from orchestrator.config.resolve import resolve_trial
from orchestrator.config.trial import TrialSpec
from orchestrator.training.group import ProcessGroup
from orchestrator.training.loop import run_trial
from orchestrator.training.registry import load_task

SPACE = "search_spaces/digits.yaml"
LRS = [0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.45, 0.6, 0.8]
SETTINGS = ["search.sampler=grid", "budget.samples=4000", "budget.eval_every=2000", "cluster.workers=2"]


def train_here(config: dict[str, Any]) -> None:
    """One worker of a stock trial."""
    import torch

    torch.set_num_threads(1)
    spec = TrialSpec.from_dict(config["spec"])
    group = ProcessGroup()
    outcome = run_trial(spec, load_task(spec.task.name, spec.task.options), group, lambda evaluation: False)
    if group.rank == 0:
        Path(config["times"]).write_text(json.dumps([outcome.first_update_at, outcome.last_update_at]))


def stock(specs: list[dict[str, Any]], folder: Path) -> list[tuple[float, float]]:
    """Run every spec as a Tune trial with a trainer of its own, one after the other; first and last updates."""

    def trial(config: dict[str, Any]) -> None:
        TorchTrainer(
            train_here,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(folder / "train"), name=Path(config["times"]).stem),
        ).fit()

    configs = [{"spec": spec, "times": str(folder / f"times{i}.json")} for i, spec in enumerate(specs)]
    tune.Tuner(
        tune.with_resources(lambda config: trial(configs[config["index"]]), {"CPU": 0.01}),
        param_space={"index": tune.grid_search(list(range(len(configs))))},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=tune.RunConfig(storage_path=str(folder / "tune"), verbose=0),
    ).fit()
    return [tuple(json.loads(Path(config["times"]).read_text())) for config in configs]


def warm(settings: list[str], folder: Path) -> list[tuple[float, float]]:
    """Run the same trials as a sweep; first and last updates."""
    argv = [SPACE, "--out", str(folder / "sweep")]
    for setting in settings:
        argv += ["--set", setting]
    assert sweep.main(argv) == 0
    events = [json.loads(line) for line in (folder / "sweep" / "events.jsonl").read_text().splitlines()]
    outcomes = [event["outcome"] for event in events if event["event"] == "trial_ended"]
    return [(outcome["first_update_at"], outcome["last_update_at"]) for outcome in outcomes]


def gaps(times: list[tuple[float, float]]) -> list[float]:
    """Seconds from each trial's last update to the next one's first."""
    ordered = sorted(times)
    return [b[0] - a[1] for a, b in itertools.pairwise(ordered)]


def main() -> None:
    """Run both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=6)
    count = parser.parse_args().trials
    lrs = LRS[:count]
    settings = [*SETTINGS, f"search.trials={count}", "space={}", f"space.lr.base={json.dumps(lrs)}"]
    loaded = load_spec(SPACE, settings)
    modes = load_task(loaded.spec.task.name, loaded.spec.task.options).metric_modes
    specs = [resolve_trial(loaded.spec, {"lr.base": lr}, metric_modes=modes).to_dict() for lr in lrs]
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        began = time.perf_counter()
        ours = gaps(warm(settings, Path(folder)))
        between = time.perf_counter()
        theirs = gaps(stock(specs, Path(folder)))
        ended = time.perf_counter()
    print(f"{'':24}{'median':>10}{'largest':>10}{'whole run':>12}")
    for name, found, wall in (("warm gang", ours, between - began), ("stock TorchTrainer", theirs, ended - between)):
        print(f"{name:24}{statistics.median(found):>9.3f}s{max(found):>9.3f}s{wall:>11.1f}s")
    print(f"overhead per trial, stock over warm: {statistics.median(theirs) / statistics.median(ours):.0f}")


if __name__ == "__main__":
    main()
