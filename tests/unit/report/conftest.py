"""A made-up sweep with a known answer, as the events that a real one would write.

Accuracy falls with the square of the distance (in octaves) between a trial's peak LR and 0.1 * sqrt(batch / 64), and
a little with the batch: so the rule is sqrt, the base 0.1, and batch 16 is best.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.config.trial import LrPlan, OptimizerRef, Target, TaskRef, TrialSpec
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.theory.lr_rules import scale

BUDGET_SAMPLES, EVERY_SAMPLES, WORLD_SIZE = 20_000, 2_000, 2
SPACE = {
    "batch.global": [16, 64, 256],
    "lr.base": {"low": 0.01, "high": 1.0, "log": True},
    "lr.rule": ["none", "sqrt", "linear"],
}
Event = dict[str, Any]


class MadeUpSweep:
    """Writes events; a method for each thing that can happen to a trial. `t` advances by 1 s an event."""

    def __init__(self, *, kind: str = "best_metric", target: float | None = None, trials: int = 24) -> None:
        self.events: list[Event] = []
        self.kind, self.target = kind, target
        self.add(
            "sweep_started",
            schema_version=1,
            name="digits",
            spec={
                "name": "digits",
                "objective": {"kind": kind, "metric": "val/accuracy", "target": target},
                "batch": {"reference": 64},
                "budget": {"samples": BUDGET_SAMPLES, "eval_every": EVERY_SAMPLES},
                "search": {"trials": trials, "seeds": 1},
                "cluster": {"workers": WORLD_SIZE},
                "space": SPACE,
            },
            facts={"train_samples": 1437, "metric_modes": {"accuracy": "max", "loss": "min"}},
            software={},
            hardware={"device": "cpu", "count": 2, "nodes": 1},
        )

    def add(self, event: str, **fields: Any) -> None:
        self.events.append({"t": 1000.0 + len(self.events), "event": event, **fields})

    def start(
        self, global_batch: int, base: float, rule: str = "sqrt", *, seed: int = 0, repeat_of: str | None = None
    ) -> tuple[str, TrialSpec]:
        """A trial that has started; its id and spec."""
        number = sum(event["event"] in ("trial_started", "trial_reused") for event in self.events)
        per_worker = global_batch // WORLD_SIZE
        micro = min(per_worker, 32)
        spec = TrialSpec(
            task=TaskRef(name="digits"),
            seed=seed,
            plan=BatchPlan(
                global_batch=global_batch, micro_batch=micro, accumulation=per_worker // micro, world_size=WORLD_SIZE
            ),
            lr=LrPlan(
                base=base, rule=rule, peak=base * scale(rule, 64, global_batch), reference_batch=64, warmup_samples=1000
            ),
            optimizer=OptimizerRef(name="SGD", options={"momentum": 0.9}),
            budget_samples=BUDGET_SAMPLES,
            eval_every_samples=EVERY_SAMPLES,
            target=Target(metric="val/accuracy", value=self.target, mode="max") if self.target else None,
        )
        trial = f"{repeat_of}-seed{seed}" if repeat_of else f"t{number:04d}"
        self.add(
            "trial_started",
            trial=trial,
            number=number,
            key=spec.key,
            params={"batch.global": global_batch, "lr.base": base, "lr.rule": rule},
            spec=spec.to_dict(),
            phase="repeat" if repeat_of else "search",
            repeat_of=repeat_of,
        )
        return trial, spec

    def accuracy(self, spec: TrialSpec, samples_seen: int) -> float:
        """The made-up law, with 0.002 more or less by seed."""
        octaves = math.log2(spec.lr.peak / (0.1 * math.sqrt(spec.plan.global_batch / 64)))
        final = 0.97 - 0.01 * octaves**2 - 0.004 * math.log2(spec.plan.global_batch / 16) + 0.002 * spec.seed
        return max(0.1, final) * (1 - math.exp(-samples_seen / 4_000))

    def evaluate(self, trial: str, spec: TrialSpec, until_samples: int) -> tuple[int, float]:
        """Evaluations at the points where updates cross the interval; samples seen and accuracy of the last one."""
        batch, samples_seen, accuracy = spec.plan.global_batch, 0, 0.0
        for mark in range(EVERY_SAMPLES, until_samples + 1, EVERY_SAMPLES):
            samples_seen = -(-mark // batch) * batch
            accuracy = self.accuracy(spec, samples_seen)
            self.add(
                "evaluation",
                trial=trial,
                samples_seen=samples_seen,
                updates=samples_seen // batch,
                metrics={"val/accuracy": accuracy, "val/loss": 1 - accuracy, "lr": spec.lr.peak},
                train_seconds=samples_seen / 10_000,
            )
        return samples_seen, accuracy

    def end(
        self,
        trial: str,
        spec: TrialSpec,
        status: str,
        value: Any,
        samples_seen: int,
        *,
        reason: str = "",
        by: Any = None,
    ) -> None:
        outcome = {
            "status": status,
            "samples_seen": samples_seen,
            "updates": samples_seen // spec.plan.global_batch,
            "train_seconds": samples_seen / 10_000,
        }
        self.add(
            "trial_ended",
            trial=trial,
            status=status,
            stopped_by=by,
            reason=reason,
            value=value,
            outcome=outcome,
            turnaround_s=0.2 if trial != "t0000" else None,
        )

    def complete(self, global_batch: int, base: float, rule: str = "sqrt", **more: Any) -> str:
        """A trial from start to budget, valued at its last accuracy."""
        trial, spec = self.start(global_batch, base, rule, **more)
        samples_seen, accuracy = self.evaluate(trial, spec, BUDGET_SAMPLES)
        self.end(trial, spec, "completed", accuracy, samples_seen)
        return trial

    def diverge(self, global_batch: int, base: float) -> str:
        trial, spec = self.start(global_batch, base)
        self.end(trial, spec, "diverged", None, 640, reason="the loss is not finite after 640 samples")
        return trial

    def fail(self, global_batch: int, base: float, reason: str = "RuntimeError in forward on rank 1: no") -> str:
        trial, spec = self.start(global_batch, base)
        self.end(trial, spec, "failed", None, 0, reason=reason)
        return trial

    def stop(self, global_batch: int, base: float, *, value: float | None = None) -> str:
        """A trial that early stopping ended after two evaluations."""
        trial, spec = self.start(global_batch, base)
        samples_seen, accuracy = self.evaluate(trial, spec, 2 * EVERY_SAMPLES)
        self.end(trial, spec, "stopped", accuracy if value is None else value, samples_seen, by="asha", reason="rung")
        return trial

    def reuse(self, of: str, value: float) -> str:
        number = sum(event["event"] in ("trial_started", "trial_reused") for event in self.events)
        trial = f"t{number:04d}"
        self.add("trial_reused", trial=trial, number=number, params={}, of=of, value=value)
        return trial


@pytest.fixture
def made_up() -> Callable[..., MadeUpSweep]:
    """Makes an empty made-up sweep."""
    return MadeUpSweep


@pytest.fixture
def full_sweep() -> list[Event]:
    """Three batches by four bases under sqrt, three under other rules, one each diverged, failed, stopped, reused."""
    sweep = MadeUpSweep()
    sweep.add("gang_started", gang=0, workers=[{"rank": 0, "pid": 1, "node": "n", "device": "cpu"}] * 2)
    for global_batch in (16, 64, 256):
        for base in (0.025, 0.1, 0.2, 0.8):
            sweep.complete(global_batch, base)
    sweep.complete(16, 0.1, "none")
    sweep.complete(256, 0.1, "linear")
    sweep.diverge(64, 1.0)
    sweep.fail(64, 0.05)
    sweep.stop(256, 0.01, value=0.999)
    sweep.reuse("t0001", 0.96)
    for seed in (1, 2):
        sweep.complete(16, 0.1, seed=seed, repeat_of="t0001")
    sweep.add("sweep_ended", status="done")
    return sweep.events
