"""One training run, fully resolved: every number that decides its trajectory, and its identity.

A `TrialSpec` holds no choice that is still open: rules are applied, shares are samples, derived batches are fixed.
It is what a gang is handed, what MLflow keeps, and what a replay reads.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.credentials import hide
from orchestrator.theory.batch_plan import BatchPlan

Mode = Literal["min", "max"]
Precision = Literal["fp32", "fp64", "bf16", "fp16"]
Decay = Literal["none", "linear", "cosine"]
Reducer = Literal["flat", "ddp"]


@dataclass(frozen=True, kw_only=True)
class TaskRef:
    """A task by name: ``module:Class``, and the options of its typed config."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LrPlan:
    """The learning rate as a function of samples seen, in absolute terms.

    `peak` is `base` taken from `reference_batch` to the trial's global batch by `rule`. `final` is a share of the peak,
    reached at the budget. Warmup is linear over `warmup_samples`; `decay` runs from there to the budget.
    """

    base: float
    rule: str
    peak: float
    reference_batch: int
    warmup_samples: int = 0
    decay: Decay = "none"
    final: float = 0.0
    exponent: float | None = None
    noise_scale: float | None = None


@dataclass(frozen=True, kw_only=True)
class OptimizerRef:
    """Any class of ``torch.optim`` by name; `options` are its keyword arguments except ``lr``."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """Dynamic loss scaling for fp16 (Micikevicius 2018); `growth_interval` in updates."""

    initial: float = 65536.0
    growth_interval: int = 2000


@dataclass(frozen=True, kw_only=True)
class LoaderSpec:
    """Data loading per worker. `workers` = 0 loads in the training process."""

    workers: int = 0
    prefetch: int = 2
    pin_memory: bool = False


@dataclass(frozen=True, kw_only=True)
class Target:
    """The metric value that counts as trained, such as ``val/loss <= 0.5``."""

    metric: str
    value: float
    mode: Mode

    def reached(self, value: float) -> bool:
        """Whether `value` is at the target or better; NaN never is."""
        return value <= self.value if self.mode == "min" else value >= self.value


@dataclass(frozen=True, kw_only=True)
class Start:
    """A checkpoint of another trial that a branch begins with.

    Attributes:
        folder: where that trial's checkpoints are; it decides nothing, so that they may be moved.
        samples_seen: at which it was taken.
        trajectory: `TrialSpec.trajectory` of that trial.
    """

    folder: str
    samples_seen: int
    trajectory: str


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One training run. Counts are samples unless their name says otherwise.

    With `eval_growth` > 0 the first evaluation comes before the first update, and later ones grow apart with the
    samples seen: that share of them, at least `eval_every_samples`.

    A branch, with `start`, takes weights and optimizer from a checkpoint of another trial, goes on from its samples
    seen at a batch and learning rate of its own, and evaluates before its first update as well. `keep_at` are samples
    seen, multiples of the global batch, at which a trial is evaluated and leaves a checkpoint that stays.
    """

    task: TaskRef
    seed: int
    plan: BatchPlan
    lr: LrPlan
    optimizer: OptimizerRef
    budget_samples: int
    eval_every_samples: int
    eval_growth: float = 0.0
    eval_batch: int = 256
    target: Target | None = None
    stop_at_target: bool = False
    precision: Precision = "fp32"
    loss_scale: LossScale = LossScale()
    grad_clip: float | None = None
    noise_probe: bool = True
    reducer: Reducer = "flat"
    loader: LoaderSpec = LoaderSpec()
    checkpoint_activations: str | None = None
    offload_optimizer: bool = False
    start: Start | None = None
    keep_at: tuple[int, ...] = ()

    @property
    def begins_at(self) -> int:
        """Samples seen before its first update."""
        return self.start.samples_seen if self.start else 0

    @property
    def updates(self) -> int:
        """Optimizer steps until `budget_samples` are seen; the last one may pass the budget."""
        return -(-(self.budget_samples - self.begins_at) // self.plan.global_batch)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready nested dict; `from_dict` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> TrialSpec:
        """Rebuild a spec written by `to_dict`."""
        parts: dict[str, Any] = {
            "task": TaskRef,
            "plan": BatchPlan,
            "lr": LrPlan,
            "optimizer": OptimizerRef,
            "target": Target,
            "loss_scale": LossScale,
            "loader": LoaderSpec,
            "start": Start,
        }
        raw = {**raw, "keep_at": tuple(raw.get("keep_at", ()))}
        return cls(**{k: parts[k](**v) if k in parts and v is not None else v for k, v in raw.items()})

    @property
    def key(self) -> str:
        """The trial's identity: 16 hex digits of the SHA-256 of what decides its trajectory.

        How the peak LR was arrived at (rule, base, reference) is left out, so two suggestions that train the same
        way have the same key. So are credentials in addresses, which may be renewed, and what saves memory alone.
        """
        return canonical_hash(hide(self._decisive(), ()))[:16]

    @property
    def trajectory(self) -> str:
        """16 hex digits of what decides its weights along the way, whatever the split of its batch and whoever
        reduces it."""
        raw = self._decisive()
        raw["plan"] = self.plan.global_batch
        del raw["reducer"], raw["loader"]
        return canonical_hash(raw)[:16]

    def _decisive(self) -> dict[str, Any]:
        raw = self.to_dict()
        raw["lr"] = {k: raw["lr"][k] for k in ("peak", "warmup_samples", "decay", "final")}
        del raw["keep_at"], raw["checkpoint_activations"], raw["offload_optimizer"]
        if not self.eval_growth:  # what trials are known by that are older than these fields stays what it was
            del raw["eval_growth"]
        if self.start is None:
            del raw["start"]
        else:
            del raw["start"]["folder"]
        return raw


def canonical_hash(value: Any) -> str:
    """SHA-256 of canonical JSON: sorted keys, no spaces, shortest float digits. Raises TypeError on anything else."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
