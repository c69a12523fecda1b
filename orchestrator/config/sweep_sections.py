"""The sections of a spec that say how trials are chosen, run and recorded: objective, budget, evaluation, search,
cluster, checkpoint, tracking."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from orchestrator.config.duration import Duration
from orchestrator.config.fields import MOST, AutoOrCount, Bytes, Count, Interval, Positive, Section, whole
from orchestrator.config.refusal import Refusal
from orchestrator.theory.memory import MARGIN

Kind = Literal["best_metric", "samples_to_target", "time_to_target", "updates_and_samples"]
Sampler = Literal["tpe", "gp", "random", "grid", "nsga2"]
EarlyStopping = Literal["none", "asha", "race", "asha+race"]


def _metric(name: str) -> str:
    if not name.startswith("val/") or name == "val/":
        remedy = f"write val/{name.rsplit('/', 1)[-1] or 'loss'} if the task has such a metric"
        raise Refusal("an objective is a validation metric, val/<name>", value=name, remedy=remedy)
    return name


def _named(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise Refusal("must be a name on one line", value=text, remedy="write one, or null for the default")
    return text


class ObjectiveSection(Section):
    """What the search looks for. Whether less or more is better comes from the task."""

    kind: Kind = "best_metric"
    """best_metric at the budget, samples_to_target, time_to_target, or updates_and_samples to the target at once."""

    metric: Annotated[str, AfterValidator(_metric)] = "val/loss"
    """``val/`` and one of the task's metrics."""

    target: float | None = None
    """The value of the metric that counts as trained; required by all kinds but best_metric."""


class BudgetSection(Section):
    """How long a trial trains, and how often it is evaluated: in samples, whatever its batch."""

    samples: Count = 20000
    """Training samples of one trial."""

    eval_every: Interval = Duration(value=2000, unit="samples")
    """Samples between evaluations, as a number or as a share of the budget ("10%")."""

    @property
    def eval_every_samples(self) -> int:
        """The interval in samples; 0 if it is a share so small that no sample is left."""
        return self.eval_every.samples(budget_samples=self.samples, global_batch=1)


class EvaluationSection(Section):
    """How the validation set is walked through; the result does not depend on it."""

    batch: Count = 256
    """Samples in one evaluation step of one worker."""


class SearchSection(Section):
    """How trials are suggested, stopped early and repeated."""

    sampler: Sampler = "tpe"
    """tpe, gp, random, grid or nsga2."""

    trials: Count = 24
    """Suggestions to train."""

    startup_trials: Count = 8
    """Random suggestions before the sampler models anything."""

    early_stopping: EarlyStopping = "none"
    """none, asha (successive halving by samples), race (cannot beat its batch size's best any more), asha+race."""

    reduction: Annotated[int, BeforeValidator(whole), Field(ge=2, le=MOST)] = 3
    """ASHA keeps one trial in this many at each rung; rungs are this factor apart."""

    lowest_rung: Count | None = None
    """First rung of ASHA in samples, at least the largest global batch; null chooses it."""

    seeds: Count = 1
    """Seeds under which the best settings are trained; 1 repeats nothing."""

    repeat_top: Count = 3
    """How many of the best settings are repeated."""


class ClusterSection(Section):
    """The workers that train one trial together, and how many such groups there are."""

    workers: Count = 2
    """Data-parallel workers of one trial: the world size."""

    gangs: AutoOrCount = "auto"
    """Trials at once; auto fills the cluster."""

    cpus_per_worker: Positive = 1.0
    """CPUs that Ray reserves for one worker."""

    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    """GPUs that Ray reserves for one worker."""

    device_memory: Bytes | None = None
    """Memory of one worker's device, such as 80GiB or 16GB, or in bytes; null asks the device."""

    memory_margin: Annotated[float, Field(ge=0, lt=1)] = MARGIN
    """Share of the device's memory that micro batches which are chosen for a worker leave free."""

    threads: Count = 1
    """CPU threads of one worker."""

    min_workers: Count = 1
    """Where the cluster has lost nodes: fewest workers to go on with; accumulation grows, the global batch stays."""

    wait_s: Annotated[float, Field(ge=0)] = 300.0
    """Seconds that a worker group which broke waits for room on the cluster before it is given up."""

    hang_timeout_s: Positive | None = 600.0
    """Seconds without any progress after which a worker counts as dead; null waits for ever."""

    isolation: Literal["warm", "fresh"] = "warm"
    """warm reuses a worker group for the next trial; fresh starts a new one for each."""

    deterministic: bool = True
    """Deterministic algorithms wherever torch has them; the others only warn."""


class CheckpointSection(Section):
    """What is kept of a trial under way, so that a break costs seconds of training and not the whole of it."""

    every_s: Annotated[float, Field(ge=0)] | None = 30.0
    """Least seconds of training between two checkpoints, made at evaluations; null makes none."""

    keep_last: Count = 1
    """How many of the latest to keep."""

    keep_best: bool = True
    """Whether to keep the one with the objective's best metric as well."""


class TrackingSection(Section):
    """Where MLflow records go."""

    uri: Annotated[str, AfterValidator(_named)] | None = None
    """Tracking URI; null takes MLFLOW_TRACKING_URI or a local SQLite file."""

    experiment: Annotated[str, AfterValidator(_named)] | None = None
    """Experiment; null takes the spec's name."""
