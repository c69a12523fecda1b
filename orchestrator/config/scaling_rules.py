"""What makes a spec one that a scaling check can train, without knowing its task yet: worker counts become batches."""

from __future__ import annotations

import math
from typing import Any

from orchestrator.config.load import Loaded, source_of, spec_from_dict
from orchestrator.config.refusal import Refusal
from orchestrator.config.short_rules import about_training, is_written, settled
from orchestrator.config.spec import SweepSpec
from orchestrator.config.study_rules import BATCHES
from orchestrator.errors import RefusedError

WORKERS, PER_WORKER = "study.scaling.workers", "study.scaling.per_worker_batch"


def as_scaling(loaded: Loaded, *, file: str) -> Loaded:
    """The spec as a scaling check trains it: worker counts and what one worker contributes are written out, their
    global batches alone are in the space, no target would end a run, and the budget is whole updates of every batch.

    Raises:
        ConfigError: names file, key, value, rule and remedy.
    """
    spec = loaded.spec
    try:
        raw, notes = settled(spec)
        workers = _workers(spec)
        per_worker = _per_worker(spec, raw["batch"])
        batches = [per_worker * count for count in workers]
        _check_split(spec, workers, per_worker)
        samples = _equal_samples(spec, workers, batches)
    except Refusal as refusal:
        raise refusal.in_file(source_of(refusal.key, file=file, set_keys=loaded.set_keys)) from None
    batch, budget = raw["batch"], raw["budget"]
    # What one worker is known to hold stays the most that it is given, however many workers train the check.
    most = min(per_worker, batch["micro_max"] or per_worker)
    if batch["micro"] != "auto":  # which finds a limit of its own
        most = min(most, batch["micro"] or per_worker // math.gcd(per_worker, batch["accumulation"] or 1))
        batch |= {"micro": None, "accumulation": None}
    batch |= {"global": batches[-1], "micro_max": most}
    raw["space"] = {BATCHES: batches}
    raw["study"]["scaling"] |= {"workers": list(workers), "per_worker_batch": per_worker}
    if samples != spec.budget.samples:
        notes.append(f"budget.samples = {samples}: {spec.budget.samples} less what is no whole update of every batch")
        budget["samples"] = samples
        if spec.budget.eval_every_samples > samples:
            budget["eval_every"] = samples
    if raw["lr"]["rule"] == "none":
        rule = "every batch is trained at the learning rate of batch.reference; write a rule, such as sqrt, to carry it"
        notes.append(f"lr.rule = none: {rule}")
    return Loaded(
        spec=spec_from_dict(raw, file=file),
        warnings=(*about_training(loaded.warnings), *notes),
        set_keys=loaded.set_keys,
    )


def in_its_words(error: RefusedError, spec: SweepSpec) -> None:
    """A refusal of a batch, told of the workers whose batch it is."""
    per_worker = spec.study.scaling.per_worker_batch
    if error.key != f"space.{BATCHES}" or per_worker is None or not isinstance(error.value, int):
        return
    error.rule = f"the global batch of {error.value // per_worker} workers, {error.value}, {error.rule}"
    error.remedy = "fewer workers, or a smaller study.scaling.per_worker_batch"
    error.key, error.value = WORKERS, list(_workers(spec))


def _workers(spec: SweepSpec) -> tuple[int, ...]:
    asked = spec.study.scaling.workers
    if asked != "auto":
        return asked
    if spec.cluster.workers == 1:
        rule = "at least two worker counts are compared, and cluster.workers is 1"
        raise Refusal(rule, key=WORKERS, value="auto", remedy="list them, such as [1, 8]")
    return (1, spec.cluster.workers)


def _per_worker(spec: SweepSpec, batch: dict[str, Any]) -> int:
    """What one worker contributes to an update of the setting that is to be scaled, in samples."""
    asked, workers = spec.study.scaling.per_worker_batch, spec.cluster.workers
    if asked is not None:
        return asked
    if isinstance(batch["micro"], int) and batch["accumulation"] is not None:
        return int(batch["micro"] * batch["accumulation"])
    if BATCHES in spec.space and not is_written(spec, BATCHES):
        rule = "a scaling check scales one setting, and the batch is searched"
        raise Refusal(rule, key=PER_WORKER, value=None, remedy=f"write it, or {BATCHES} outside the space")
    if batch["global"] % workers:
        rule = f"must be a multiple of cluster.workers, which is {workers}"
        raise Refusal(rule, key=BATCHES, value=batch["global"], remedy=f"write a multiple, or {PER_WORKER}")
    return int(batch["global"] // workers)


def _check_split(spec: SweepSpec, workers: tuple[int, ...], per_worker: int) -> None:
    gang = spec.cluster.workers
    for count in workers:
        if per_worker * count % gang:
            rule = f"cannot split the global batch {per_worker * count}, that of {count} x {per_worker} samples"
            remedy = f"with {PER_WORKER}: {per_worker}, write 1: what is trained depends on the global batch alone"
            raise Refusal(rule, key="cluster.workers", value=gang, remedy=remedy)


def _equal_samples(spec: SweepSpec, workers: tuple[int, ...], batches: list[int]) -> int:
    """The most samples within the budget that are whole updates of every batch: all arms end on the same sample."""
    together, budget = math.lcm(*batches), spec.budget.samples
    if together <= budget:
        return together * (budget // together)
    if batches[-1] > budget:
        rule = f"the global batch of {workers[-1]} workers, {batches[-1]}, is over budget.samples, which is {budget}"
        raise Refusal(rule, key=WORKERS, value=list(workers), remedy="fewer workers, or a larger budget.samples")
    rule = f"no count of samples up to budget.samples, {budget}, is whole updates of every batch: {batches}"
    remedy = "worker counts that divide one another, such as [1, 2, 4, 8], or a larger budget.samples"
    raise Refusal(rule, key=WORKERS, value=list(workers), remedy=remedy)
