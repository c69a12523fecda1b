"""The MLflow params of a run, as pure functions of the events that describe it. Keys are those of `tracking.schema`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from orchestrator.config.trial import TrialSpec, canonical_hash

# MLflow cuts longer values without a word.
MAX_PARAM_LENGTH = 6000
_SHOWN_LENGTH = 200

Record = Mapping[str, Any]


def text_of(value: Any) -> str:
    """A param's text: ``none``, ``true``, shortest float digits, JSON for lists and mappings, short forms for long."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, int | float):
        return repr(value)
    return shortened(json.dumps(value, sort_keys=True, separators=(",", ":"), default=str))


def shortened(text: str, limit: int = MAX_PARAM_LENGTH) -> str:
    """`text`, or its beginning, length and hash if it is longer than `limit` characters; different texts stay so."""
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[:_SHOWN_LENGTH]}... ({len(text)} characters, sha256 {digest})"


def params_of(trial_started: Record, sweep_started: Record) -> dict[str, str]:
    """Params of a trial's run.

    Args:
        trial_started: the event of that name.
        sweep_started: the event of that name, of the same sweep.
    """
    spec = TrialSpec.from_dict(dict(trial_started["spec"]))
    plan, lr, target = spec.plan, spec.lr, spec.target
    values: dict[str, Any] = {
        **_shared(sweep_started),
        "task/name": spec.task.name,
        "data/name": spec.task.name,
        "batch/global": plan.global_batch,
        "batch/micro": plan.micro_batch,
        "batch/accumulation": plan.accumulation,
        "batch/world_size": plan.world_size,
        "batch/per_worker": plan.per_worker_batch,
        "batch/reference": lr.reference_batch,
        "lr/base": lr.base,
        "lr/rule": lr.rule,
        "lr/peak": lr.peak,
        "lr/warmup_samples": lr.warmup_samples,
        "lr/warmup_updates": -(-lr.warmup_samples // plan.global_batch),
        "lr/decay": lr.decay,
        "lr/final": lr.final,
        "lr/exponent": lr.exponent,
        "lr/noise_scale": lr.noise_scale,
        "optimizer/name": spec.optimizer.name,
        "precision": spec.precision,
        "loss_scale/initial": spec.loss_scale.initial,
        "loss_scale/growth_interval": spec.loss_scale.growth_interval,
        "grad_clip": spec.grad_clip,
        "noise_probe": spec.noise_probe,
        "checkpoint_activations": spec.checkpoint_activations,
        "offload_optimizer": spec.offload_optimizer,
        "seed": spec.seed,
        "budget/samples": spec.budget_samples,
        "budget/updates": spec.updates,
        "budget/eval_every": spec.eval_every_samples,
        "budget/eval_growth": spec.eval_growth,
        "evaluation/batch": spec.eval_batch,
        "start/samples_seen": spec.start and spec.start.samples_seen,
        "start/trajectory": spec.start and spec.start.trajectory,
        "target/metric": target and target.metric,
        "target/value": target and target.value,
        "target/mode": target and target.mode,
        "target/stop": spec.stop_at_target,
        "reducer": spec.reducer,
        "loader/workers": spec.loader.workers,
        "loader/prefetch": spec.loader.prefetch,
        "loader/pin_memory": spec.loader.pin_memory,
    }
    return _texts({**_family("optimizer", spec.optimizer.options), **_family("task", spec.task.options), **values})


def sweep_params_of(sweep_started: Record) -> dict[str, str]:
    """Params of the parent run."""
    spec = sweep_started["spec"]
    budget, objective = spec.get("budget", {}), spec.get("objective", {})
    values = {
        **_shared(sweep_started),
        "name": sweep_started["name"],
        "objective/target": objective.get("target"),
        "budget/samples": budget.get("samples"),
        "budget/eval_every": budget.get("eval_every"),
        "seed": spec.get("seed"),
    }
    families = {
        **_family("task", {key: value for key, value in spec.get("task", {}).items() if key != "name"}),
        **_family("search", spec.get("search", {})),
        **_family("space", spec.get("space", {})),
    }
    return _texts({**families, **values})


def sweep_id_of(sweep_started: Record) -> str:
    """The identity of a sweep, from the event that describes it."""
    return canonical_hash(sweep_started)[:16]


def described_after(description: Record | None, sweep_resumed: Record) -> dict[str, Any] | None:
    """What describes a sweep for trials that start after it was taken on: with what is so now.

    Args:
        description: the event ``sweep_started``, or what this function made of it before; None if it is not known.
        sweep_resumed: the event of that name.
    """
    if description is None:
        return None
    now = {name: sweep_resumed[name] for name in ("software", "hardware", "task_source") if name in sweep_resumed}
    if "cluster" in sweep_resumed:
        now["spec"] = {**description["spec"], "cluster": sweep_resumed["cluster"]}
    return {**description, **now}


def run_name(trial_started: Record) -> str:
    """What a list of runs shows: trial, batch and peak learning rate."""
    spec = trial_started["spec"]
    lr = spec["lr"]
    return f"{trial_started['trial']} B={spec['plan']['global_batch']} lr={lr['peak']:.3g} {lr['rule']}"


def _shared(sweep_started: Record) -> dict[str, Any]:
    spec, facts = sweep_started["spec"], sweep_started["facts"]
    hardware, software = sweep_started["hardware"], sweep_started["software"]
    task, objective, cluster = spec.get("task", {}), spec.get("objective", {}), spec.get("cluster", {})
    return {
        **_family("cluster", cluster),
        "task/name": task.get("name"),
        "task/source_hash": (sweep_started.get("task_source") or {}).get("hash"),
        "data/name": task.get("name"),
        "data/fingerprint": facts["fingerprint"],
        "data/train_samples": facts["train_samples"],
        "data/val_samples": facts["val_samples"],
        "model/parameters": facts.get("parameters"),
        "objective/kind": objective.get("kind"),
        "objective/metric": objective.get("metric"),
        **{f"hardware/{key}": hardware.get(key) for key in ("device", "count", "nodes")},
        **{
            f"software/{key}": software.get(key)
            for key in (*("python", "torch", "numpy", "ray", "optuna", "mlflow"), "orchestrator", "cuda", "git_commit")
        },
        "threads": cluster.get("threads"),
        "deterministic": cluster.get("deterministic"),
    }


def _family(prefix: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{key}": value for key, value in options.items()}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: text_of(value) for key, value in values.items()}
