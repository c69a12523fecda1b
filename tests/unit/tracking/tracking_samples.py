"""A small sweep as its events, for the tests of everything that is made from them."""

from __future__ import annotations

from typing import Any

from orchestrator.config.trial import LrPlan, OptimizerRef, Target, TaskRef, TrialSpec
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.tracking.events import SCHEMA_VERSION, EventLog
from orchestrator.tracking.software import software_versions

SWEEP_SPEC: dict[str, Any] = {
    "name": "digits",
    "task": {"name": "digits", "model": "mlp", "hidden": 64},
    "seed": 0,
    "objective": {"kind": "best_metric", "metric": "val/accuracy", "target": None},
    "budget": {"samples": 20000, "eval_every": 2000},
    "batch": {"global": 64, "reference": 64, "micro": None, "micro_max": None, "accumulation": None},
    "lr": {"base": 0.1, "rule": "sqrt", "warmup": "5%", "decay": "cosine", "final": "0%"},
    "optimizer": {"name": "SGD", "momentum": 0.9},
    "search": {"sampler": "tpe", "trials": 24, "early_stopping": "asha", "seeds": 1},
    "cluster": {"workers": 2, "gangs": "auto", "threads": 1, "deterministic": True},
    "tracking": {"uri": None, "experiment": None},
    "space": {"batch.global": [16, 32, 64], "lr.base": {"low": 0.01, "high": 1.0, "log": True}},
}
FACTS: dict[str, Any] = {
    "train_samples": 1438,
    "val_samples": 359,
    "fingerprint": "0123456789abcdef",
    "metric_modes": {"loss": "min", "accuracy": "max"},
    "parameters": 4810,
}


def trial_spec(global_batch: int = 64, peak: float = 0.1, seed: int = 0, **options: Any) -> TrialSpec:
    """A trial of the digits task on two workers."""
    return TrialSpec(
        task=TaskRef(name="digits", options={"model": "mlp", "hidden": 64, **options}),
        seed=seed,
        plan=BatchPlan(global_batch=global_batch, micro_batch=global_batch // 2, accumulation=1, world_size=2),
        lr=LrPlan(base=0.1, rule="sqrt", peak=peak, reference_batch=64, warmup_samples=1000, decay="cosine"),
        optimizer=OptimizerRef(name="SGD", options={"momentum": 0.9, "nesterov": True}),
        budget_samples=20000,
        eval_every_samples=2000,
        target=Target(metric="val/accuracy", value=0.9, mode="max"),
    )


def measured(step: int) -> dict[str, float]:
    """Every metric of an evaluation; accuracy reaches 0.9 at the fifth."""
    return {
        "train/loss": 2.3 / step,
        "val/loss": 2.2 / step,
        "val/accuracy": min(0.98, 0.5 + 0.08 * step),
        "lr": 0.1,
        "grad_norm": 1.5 / step,
        "noise_scale": 40.0 + step,
        "noise_scale_low": 30.0 + step,
        "noise_scale_high": 50.0 + step,
        "noise_scale_trace": 4.0 + 0.1 * step,
        "noise_scale_trace_se": 0.2,
        "noise_scale_g2": 0.1,
        "noise_scale_g2_se": 0.01,
        "noise_scale_correlation": -0.3,
        "noise_scale_blocks": 20.0,
        "samples_per_second": 12000.0,
        "step_ms": 5.25,
        "data_wait_fraction": 0.02,
        "peak_memory_bytes": 3.1e8,
        "loss_scale": 65536.0,
        "updates": float(-(-2000 * step // 64)),
    }


class Sweep:
    """Appends the events of a sweep to a log."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.specs: dict[str, TrialSpec] = {}

    def start(self, **changes: Any) -> None:
        started = {
            "schema_version": SCHEMA_VERSION,
            "name": "digits",
            "spec": SWEEP_SPEC,
            "facts": FACTS,
            "software": software_versions(),
            "hardware": {"device": "cpu", "count": 2, "nodes": 1},
            "task_source": {"hash": "feedfacefeedface", "files": {"my/task.py": "class MyTask: ...\n"}},
        }
        self.log.append("sweep_started", **{**started, **changes})

    def resume(self, **changed: list[Any]) -> None:
        """Another process takes the sweep on; `changed` is what is not as it was."""
        software = {**software_versions(), **{name: now for name, (_, now) in changed.items()}}
        hardware = {"device": "cpu", "count": 2, "nodes": 1}
        source: dict[str, Any] = {"hash": "feedfacefeedface", "files": {}}
        if "task_source" in changed:
            source = {"hash": changed["task_source"][1], "files": {"my/task.py": "class MyTask: x = 1\n"}}
        cluster = {**SWEEP_SPEC["cluster"], **{name: now for name, (_, now) in changed.items() if name == "threads"}}
        fields = {"software": software, "hardware": hardware, "task_source": source, "cluster": cluster}
        self.log.append("sweep_resumed", **fields, changed=changed)

    def interrupt(self, trial: str, reason: str = "gang 0 restarted", breaks: int = 1) -> None:
        self.log.append("trial_interrupted", trial=trial, reason=reason, breaks=breaks)

    def go_on(self, trial: str, from_samples: int, **split: int) -> None:
        """A gang goes on with a trial; `split` is what is not as the trial's spec says."""
        plan = {name: getattr(self.specs[trial].plan, name) for name in ("micro_batch", "accumulation", "world_size")}
        fields = {"from_samples": from_samples, "plan": {**plan, **split}, "reason": "gang 0 restarted"}
        self.log.append("trial_continued", trial=trial, **fields)

    def trial(self, number: int, spec: TrialSpec | None = None, **changes: Any) -> str:
        spec = spec or trial_spec(global_batch=16 * 2 ** (number % 3), peak=0.05 * (number + 1))
        trial = f"t{number:04d}"
        self.specs[trial] = spec
        started = {
            "trial": trial,
            "number": number,
            "key": spec.key,
            "params": {"batch.global": spec.plan.global_batch, "lr.base": spec.lr.base},
            "spec": spec.to_dict(),
            "phase": "search",
            "repeat_of": None,
        }
        self.log.append("trial_started", **{**started, **changes})
        return trial

    def evaluate(self, trial: str, count: int, first: int = 1, **metrics: float) -> None:
        batch = self.specs[trial].plan.global_batch
        for step in range(first, first + count):
            updates = -(-2000 * step // batch)
            self.log.append(
                "evaluation",
                trial=trial,
                samples_seen=updates * batch,
                updates=updates,
                metrics={**measured(step), **metrics},
                train_seconds=0.2 * step,
            )

    def end(self, trial: str, status: str = "completed", samples_seen: int = 20000, **changes: Any) -> None:
        outcome = {
            "status": status,
            "samples_seen": samples_seen,
            "updates": samples_seen // self.specs[trial].plan.global_batch,
            "train_seconds": 2.0,
            "reason": "",
            "failure": None,
            "first_grad_norms": [2.0, 1.9, 1.8],
            "noise": {"value": 41.5, "low": 38.0, "high": 46.0, "windows": 300, "reason": "", "unit": "samples"},
            "skipped_updates": 0,
            "peak_memory_bytes": 310000000,
            "notes": [],
            **changes.pop("outcome", {}),
        }
        ended = {"stopped_by": None, "reason": "", "value": 0.97, "outcome": outcome, "turnaround_s": 0.15}
        self.log.append("trial_ended", trial=trial, status=status, **{**ended, **changes})

    def whole_trial(self, number: int, evaluations: int = 5, **changes: Any) -> str:
        trial = self.trial(number)
        self.evaluate(trial, evaluations)
        self.end(trial, **changes)
        return trial
