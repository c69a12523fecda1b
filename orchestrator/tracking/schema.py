"""Every key that a run carries in MLflow, with its unit and meaning: the one source of docs/mlflow-schema.md.

``python -m orchestrator.tracking.schema`` prints that page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Kind = Literal["param", "metric", "tag", "artifact"]
Scope = Literal["trial", "sweep"]


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key, or a family of keys if `name` holds a ``*``.

    `always` says that every run of this scope carries it; the others are there when there is something to say.
    """

    name: str
    kind: Kind
    scope: Scope
    unit: str
    meaning: str
    always: bool = False


def _keys(kind: Kind, scope: Scope, rows: Iterable[tuple[str, str, str]]) -> tuple[Key, ...]:
    """Rows of (name, unit, meaning); a name with a ``!`` at its end is always there."""
    return tuple(
        Key(name=name.rstrip("!"), kind=kind, scope=scope, unit=unit, meaning=meaning, always=name.endswith("!"))
        for name, unit, meaning in rows
    )


_SHARED_PARAMS = (
    ("task/name!", "", "task, as a built-in name or `module:Class`"),
    ("task/source_hash!", "", "SHA-256 (16 digits) of the task's own source; the text is on the parent run"),
    ("data/name!", "", "the task whose data it is"),
    ("data/fingerprint!", "", "16 hex digits that change when the data changes"),
    ("data/train_samples!", "samples", "size of the training set"),
    ("data/val_samples!", "samples", "size of the evaluation set, all of it used in each evaluation"),
    ("model/parameters!", "count", "trainable parameters"),
    ("objective/kind!", "", "`best_metric`, `samples_to_target`, `time_to_target` or `updates_and_samples`"),
    ("objective/metric!", "", "metric that the search looks at"),
    ("hardware/device!", "", "what one worker runs on"),
    ("hardware/count!", "count", "devices"),
    ("hardware/nodes!", "count", "machines"),
    ("software/python!", "", "version"),
    ("software/torch!", "", "version"),
    ("software/numpy!", "", "version"),
    ("software/ray!", "", "version"),
    ("software/optuna!", "", "version"),
    ("software/mlflow!", "", "version"),
    ("software/orchestrator!", "", "our own version, and 8 hex digits of the SHA-256 of the code that trains"),
    ("software/cuda!", "", "CUDA that torch was built for"),
    ("software/git_commit!", "", "commit of the project folder; `+changes` if files differed from it"),
    ("threads!", "count", "CPU threads of a worker"),
    ("deterministic!", "", "whether torch was held to deterministic algorithms"),
    ("cluster/*", "", "section `cluster` of the spec, as it was when the run began"),
)

_TRIAL_PARAMS = (
    ("batch/global!", "samples", "samples an update, all workers together"),
    ("batch/micro!", "samples", "samples that one worker puts through one forward and backward"),
    ("batch/accumulation!", "count", "micro batches of a worker an update"),
    ("batch/world_size!", "count", "data-parallel workers"),
    ("batch/per_worker!", "samples", "micro x accumulation"),
    ("batch/reference!", "samples", "global batch at which `lr/base` is stated"),
    ("lr/base!", "", "learning rate at the reference batch"),
    ("lr/rule!", "", "how the peak follows the batch: `none`, `sqrt`, `linear`, `power`, `noise`, `sde`"),
    ("lr/peak!", "", "learning rate after warmup, before decay"),
    ("lr/warmup_samples!", "samples", "length of the linear warmup"),
    ("lr/warmup_updates!", "count", "the same in updates, rounded up"),
    ("lr/decay!", "", "`none`, `linear` or `cosine`, from the end of warmup to the budget"),
    ("lr/final!", "share", "learning rate at the budget, as a share of the peak"),
    ("lr/exponent!", "", "exponent of the rule `power`"),
    ("lr/noise_scale!", "samples", "noise scale that the rule `noise` assumes"),
    ("optimizer/name!", "", "class of `torch.optim`"),
    ("optimizer/*", "", "its keyword arguments"),
    ("task/*", "", "the task's options"),
    ("precision!", "", "`fp32`, `fp64`, `bf16` or `fp16`"),
    ("loss_scale/initial!", "", "first loss scale; used with fp16"),
    ("loss_scale/growth_interval!", "updates", "finite updates before the loss scale doubles"),
    ("grad_clip!", "", "largest norm of the mean gradient; `none` is no clipping"),
    ("noise_probe!", "", "whether the noise scale is measured"),
    ("checkpoint_activations!", "", "class of modules whose forward pass is run again to save memory; `none` for none"),
    ("offload_optimizer!", "", "whether the optimizer's state is in host memory, where its step is made"),
    ("seed!", "", "seed of model, sample order and augmentation"),
    ("budget/samples!", "samples", "training length"),
    ("budget/updates!", "count", "training length, rounded up"),
    ("budget/eval_every!", "samples", "an evaluation follows each update that crosses a multiple"),
    ("budget/eval_growth!", "share", "evaluations grow apart by this share of samples seen; 0 keeps the interval"),
    (
        "start/samples_seen!",
        "samples",
        "of the checkpoint that a branch begins with; `none` for one that begins afresh",
    ),
    ("start/trajectory!", "", "16 hex digits of the trial that left it"),
    ("evaluation/batch!", "samples", "batch of the evaluation, the same in every trial"),
    ("target/metric!", "", "metric that counts as trained; `none` without a target"),
    ("target/value!", "of the metric", "value to reach"),
    ("target/mode!", "", "`min` or `max`"),
    ("target/stop!", "", "whether training ends at the target"),
    ("reducer!", "", "how gradients are reduced: `flat` or `ddp`"),
    ("loader/workers!", "count", "loader processes of a worker; 0 loads in the training process"),
    ("loader/prefetch!", "count", "batches that each loader process has ready"),
    ("loader/pin_memory!", "", "whether batches are copied to the device from pinned memory"),
)

_SWEEP_PARAMS = (
    ("name!", "", "name of the sweep"),
    ("task/*", "", "the task's options where the space says nothing else"),
    ("search/*", "", "section `search` of the spec"),
    ("space/*", "", "what is tried for a dotted key of the spec"),
    ("objective/target!", "of the metric", "value to reach; `none` without a target"),
    ("budget/samples!", "samples", "training length of a trial"),
    ("budget/eval_every!", "samples", "as configured"),
    ("seed!", "", "seed of the search"),
)

_TRIAL_METRICS = (
    ("train/loss", "task's loss a weight", "mean training loss since the last evaluation"),
    ("train/*", "", "other measurements on training samples"),
    ("val/*", "of the metric", "metric over the whole evaluation set"),
    ("lr", "", "learning rate of the last update"),
    ("grad_norm", "", "norm of the mean gradient, before clipping"),
    ("noise_scale", "samples", "simple noise scale tr(Sigma)/|G|^2 of the last tenth of the updates, if determined"),
    ("noise_scale_low", "samples", "lower end of its 95 % interval"),
    ("noise_scale_high", "samples", "upper end"),
    ("noise_scale_trace", "gradient^2 samples", "mean estimate of tr(Sigma) over these updates"),
    ("noise_scale_trace_se", "gradient^2 samples", "its standard error"),
    ("noise_scale_g2", "gradient^2", "mean estimate of |G|^2 over these updates; may be below 0"),
    ("noise_scale_g2_se", "gradient^2", "its standard error"),
    ("noise_scale_correlation", "", "of the errors of the two"),
    ("noise_scale_blocks", "count", "blocks of updates behind these errors"),
    (
        "noise/*",
        "",
        "the estimate over the whole run, and as `noise/end_*` over its end: `outcome.json` holds all of it",
    ),
    ("updates", "count", "optimizer steps so far"),
    ("samples_per_second", "samples/s", "training speed, evaluations left out"),
    ("step_ms", "ms", "time of an update"),
    ("data_wait_fraction", "share", "share of the training time spent waiting for data"),
    ("peak_memory_bytes", "bytes", "largest memory of a worker"),
    ("train_seconds", "s", "training time so far, evaluations left out"),
    ("loss_scale", "", "fp16 loss scale"),
    ("skipped_updates", "count", "windows without weight or with a gradient that fp16 could not hold"),
    ("geometry/micro_batch", "samples", "micro batch from here on, where it is not that of the spec: memory ran out"),
    ("geometry/accumulation", "count", "accumulation from here on, likewise"),
    ("geometry/world_size", "count", "workers from here on, likewise"),
    ("early_grad_norm", "", "`grad_norm` of each of the first 20 updates"),
    ("samples_to_target", "samples", "samples seen at the first evaluation that reached the target"),
    ("turnaround_s", "s", "from the gang's last update of the trial before to the first of this one"),
    ("value", "of the objective", "what the search was told; never there for failed or diverged trials"),
    ("value/updates", "count", "first of the two values of `updates_and_samples`"),
    ("value/samples", "samples", "second of the two values of `updates_and_samples`"),
)

_SWEEP_METRICS = (
    ("trials/completed", "count", "trials that used their budget, so far"),
    ("trials/target_reached", "count", "trials that ended at the target, so far"),
    ("trials/stopped", "count", "trials that early stopping ended, so far"),
    ("trials/diverged", "count", "trials that ended at a value that is not finite, so far"),
    ("trials/failed", "count", "trials that failed, so far"),
    ("trials/reused", "count", "suggestions answered by an equal trial, which have no run, so far"),
    ("study/critical_batch", "samples", "a study's estimate: Emin / Smin, where samples to the target are twice Emin"),
    ("study/cbs20", "samples", "the batch of 20 % overhead over Emin"),
    ("study/emin", "samples", "samples to the target at vanishing batch"),
    ("study/smin", "updates", "updates to the target at unlimited batch"),
    ("study/noise_scale", "samples", "noise scale where the target is reached, near the critical batch"),
    ("study/lr_exponent", "", "alpha of best LR ~ B^alpha up to the critical batch"),
    ("study/*_low", "as above", "lower end of the 95 % interval of each"),
    ("study/*_high", "as above", "upper end"),
    (
        "branch/local_critical_batch",
        "samples",
        "where the rate of learning halves; `step` is samples at the checkpoint",
    ),
    ("branch/local_critical_batch_*", "samples", "`low` and `high` end of its 95 % interval"),
    (
        "branch/one_step_critical_batch",
        "samples",
        "where the share of the loss that an update removes halves; as above",
    ),
    ("branch/tolerance_batch", "samples", "largest batch within `study.branch.tolerance` after a branch; as above"),
    ("branch/noise_scale", "samples", "noise scale of the updates before the checkpoint; as above"),
    ("scan/trend", "e-folds/sample", "fall of the training loss; `step` is the global batch"),
    ("scan/to_level", "samples", "to a value of the metric that all batches reach; `step` is the global batch"),
    ("scan/relative", "share", "the smallest batch's samples to it over these; `step` is the global batch"),
    ("scan/relative_per_second", "share", "the same times the speed over the smallest batch's; `step` is the batch"),
    ("scan/at_equal_samples", "of the metric", "after the samples that all batches saw; `step` is the global batch"),
    ("scan/at_equal_updates", "of the metric", "after the updates that all batches made; `step` is the global batch"),
    ("scan/samples_per_second", "samples/s", "speed of training; `step` is the global batch"),
    ("scan/noise_scale", "samples", "noise scale at the end of the run; `step` is the global batch"),
    ("scaling/value", "of the metric", "mean over the seeds after equal samples; `step` is the global batch"),
    ("scaling/value_sd", "of the metric", "its standard deviation between seeds; `step` is the global batch"),
    ("scaling/lost", "of the metric", "quality lost against the fewest workers, seed by seed; `step` is the batch"),
    ("scaling/lost_*", "of the metric", "`low` and `high` end of its interval"),
    ("scaling/diverged", "count", "runs that did; `step` is the global batch"),
    ("scaling/tolerance", "of the metric", "the least loss that matters"),
    (
        "scaling/tolerance_*",
        "of the metric",
        "`low` and `high` end of its interval, where it is the noise between seeds",
    ),
    ("scaling/holds_up_to_workers", "count", "most workers at which, and at all fewer, quality is held"),
    ("probe/samples_per_second/*", "samples/s", "speed by workers; `step` is the micro batch, of accumulation 1"),
    ("probe/step_ms/*", "ms", "an update, likewise"),
    ("probe/predicted_peak_bytes", "bytes", "of an update on one worker; `step` is the micro batch"),
    ("probe/doubling_knee/*", "samples", "micro batch from which doubling gains under 30 %, by workers"),
    ("probe/ceiling_knee/*", "samples", "micro batch from which speed is within 10 % of its ceiling, by workers"),
    ("probe/memory/micro_batch", "samples", "largest micro batch that fits, measured or else predicted"),
    ("probe/memory/fixed_bytes", "bytes", "of the line through predicted peaks: what any micro batch holds"),
    ("probe/memory/per_sample_bytes", "bytes", "what one more sample adds"),
    ("ladder/samples_to_target", "samples", "of the expected curve; `step` is the global batch"),
    ("ladder/updates_to_target", "updates", "the same over the batch; `step` is the global batch"),
    ("ladder/lr", "", "learning rate of the final runs; `step` is the global batch"),
    ("ladder/best_lr", "", "where the best learning rate is expected; `step` is the global batch"),
    ("ladder/seeds", "count", "final runs; `step` is the global batch"),
)

_TRIAL_TAGS = (
    ("orchestrator.kind!", "", "`trial`"),
    ("orchestrator.sweep_id!", "", "identity of the sweep, the same on all its runs"),
    ("orchestrator.trial!", "", "trial id within the sweep"),
    ("orchestrator.trial_key!", "", "16 hex digits of the SHA-256 of what decides the trajectory"),
    ("orchestrator.host!", "", "machine that made the run: a later start there closes what was left running"),
    ("orchestrator.run_dir!", "", "run directory that the run was made from"),
    ("phase!", "", "`search`, or `repeat` under another seed; in a study `baseline`, `search`, `settings` or `final`"),
    ("repeat_of", "", "trial whose settings are repeated"),
    ("reused_by", "", "later suggestions that were equal and took this trial's value"),
    ("status", "", "`completed`, `target_reached`, `stopped`, `diverged`, `failed` or `killed`"),
    (
        "stopped_by",
        "",
        "`asha`, `race`, or of a study `overshoot` (far enough past the target) or `left out` (its batch cannot be "
        "trained); MLflow status FINISHED",
    ),
    ("diverged", "", "`true` if a value was not finite; the run's MLflow status is FAILED"),
    ("diverged_at_samples", "samples", "samples seen when that was noticed"),
    ("reason", "", "why it ended, in a sentence"),
    ("failure/kind", "", "type of the error"),
    ("failure/phase", "", "`setup`, `loader`, `forward`, `backward`, `update` or `evaluation`"),
    ("failure/rank", "", "worker on which it happened"),
    ("interrupted", "count", "how often its workers broke or had to leave, so far"),
    ("interrupted/reason", "", "why, the last time"),
    ("continued", "count", "how often it went on after that, or after the sweep was taken on"),
    ("resumed_from", "samples", "samples seen of the checkpoint that it went on from, the last time"),
    ("geometry", "", "micro batch x accumulation x workers at last, where they are not those of the params"),
    ("notes", "", "findings, such as that the run is only statistically equal under another split"),
    ("mlflow.*", "", "MLflow's own; `mlflow.parentRunId` names the sweep's run"),
)

_SWEEP_TAGS = (
    ("orchestrator.kind!", "", "`sweep`"),
    ("orchestrator.sweep_id!", "", "identity of the sweep"),
    ("orchestrator.host!", "", "machine that made the run: a later start there closes what was left running"),
    ("orchestrator.run_dir!", "", "run directory that the run was made from"),
    ("study", "", "method of a critical-batch study: `ladder`"),
    ("probe", "", "`true` for a probe, which has no trials"),
    ("resumed", "count", "how often another process took the sweep on"),
    ("changed/*", "", "what was not as before when that happened: `before -> now`; later trials carry it as params"),
    ("reason", "", "why it was closed, if nobody was left to say so"),
    ("status", "", "`done`, `failed`, `interrupted` or `killed`"),
    ("mlflow.*", "", "MLflow's own"),
)

_TRIAL_ARTIFACTS = (
    ("spec.json!", "", "the trial's whole resolved spec, with every value at full length"),
    ("outcome.json", "", "how it ended: failure with traceback, first gradient norms, noise estimate, notes"),
)

_SWEEP_ARTIFACTS = (
    ("spec.yaml!", "", "the sweep's whole resolved spec"),
    ("task_source/*", "", "source of the task, and of what it imports from its own package"),
    ("task_source-*", "", "the same by its hash, where it had changed when the sweep was taken on"),
    ("*", "", "figures"),
)

KEYS: tuple[Key, ...] = (
    *_keys("param", "trial", (*_SHARED_PARAMS, *_TRIAL_PARAMS)),
    *_keys("metric", "trial", _TRIAL_METRICS),
    *_keys("tag", "trial", _TRIAL_TAGS),
    *_keys("artifact", "trial", _TRIAL_ARTIFACTS),
    *_keys("param", "sweep", (*_SHARED_PARAMS, *_SWEEP_PARAMS)),
    *_keys("metric", "sweep", _SWEEP_METRICS),
    *_keys("tag", "sweep", _SWEEP_TAGS),
    *_keys("artifact", "sweep", _SWEEP_ARTIFACTS),
)


def find_key(kind: Kind, scope: Scope, name: str) -> Key | None:
    """The schema's entry for a key; an exact name goes before a family. None if the schema does not know it."""
    own = [key for key in KEYS if key.kind == kind and key.scope == scope]
    for key in own:
        if key.name == name:
            return key
    return next((key for key in own if fnmatchcase(name, key.name)), None)


def required(kind: Kind, scope: Scope) -> set[str]:
    """Names that every run of this scope carries."""
    return {key.name for key in KEYS if key.always and key.kind == kind and key.scope == scope}


def markdown() -> str:
    """The page docs/mlflow-schema.md."""
    lines = [
        "# What a run carries in MLflow",
        "",
        "One parent run a sweep, one child run a trial. The `step` of a trial's metrics is samples seen, all workers",
        "together; that of a sweep's metrics is samples seen by all its trials, unless said otherwise. A key with * is",
        "on every run. Params are written once, and a value that is not set reads `none`. A value longer than 6,000",
        "characters is replaced by its beginning, length and hash: the artifact holds it whole.",
        "",
        "A run's MLflow status: FINISHED for `completed`, `target_reached` and `stopped`; FAILED for `failed` and",
        "`diverged`; KILLED if the sweep ended first. A sweep's: FINISHED, FAILED, or KILLED if it was interrupted.",
        "Runs of a sweep that is taken on are opened again.",
        "",
        "This page is generated: `python -m orchestrator.tracking.schema > docs/mlflow-schema.md`.",
    ]
    titles = {"param": "Params", "metric": "Metrics", "tag": "Tags", "artifact": "Artifacts"}
    for scope, run in (("trial", "trial (child run)"), ("sweep", "sweep (parent run)")):
        for kind, title in titles.items():
            lines += ["", f"## {title} of a {run}", "", "| key | unit | meaning |", "| --- | --- | --- |"]
            for key in KEYS:
                if key.kind == kind and key.scope == scope:
                    mark = " *" if key.always else ""
                    lines.append(f"| `{key.name}`{mark} | {key.unit} | {key.meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
