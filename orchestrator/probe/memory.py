"""What fits: the peak of memory predicted on the driver, and where asked found by tries in fresh processes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.cluster.probers import ProberDied, Room
from orchestrator.config.trial import TrialSpec
from orchestrator.probe.experiment import ProbeExperiment
from orchestrator.probe.plan import ProbePlan
from orchestrator.theory.batch_finder import BatchFinder, Found, Order, Sight
from orchestrator.theory.geometry import Geometry
from orchestrator.theory.memory import accumulation_finding
from orchestrator.theory.memory_use import MemoryUse, Remedy, layer_growth, remedies
from orchestrator.training.intensity import count_work
from orchestrator.training.memory_ceiling import memory_ceiling
from orchestrator.training.memory_prediction import predict_memory
from orchestrator.training.registry import load_task
from orchestrator.training.sample_sizes import find_largest
from orchestrator.training.traced_step import NotTraceable

PREDICTED, TRIED, FOUND = "probe_predicted", "probe_tried", "probe_found"
_ACCUMULATIONS = (2, 4, 8)
_TRIES = 16
"""Steps of the search for the ceiling between a micro batch that fits and the next that does not, at most."""


def predict(plan: ProbePlan, device_bytes: float, margin: float) -> dict[str, Any]:
    """Predict on this machine, without a device; ``reason`` says why it could not be done."""
    trial = plan.trial(Geometry(micro_batch=1))
    task = load_task(trial.task.name, trial.task.options)
    try:
        found = memory_ceiling(trial, task, device_bytes, cap=plan.cap(1), margin=margin)
        micro = max(found.uses)
        grown = {
            a: predict_memory(plan.trial(Geometry(micro_batch=micro, accumulation=a)), task).peak_bytes
            for a in _ACCUMULATIONS
        }
        use = found.uses[micro]
        savers = _savers(plan, trial, use)
        variants = {
            name: predict_memory(plan.trial(Geometry(micro_batch=micro), changes), task)
            for name, changes in savers.items()
        }
        works = {str(m): dataclasses.asdict(count_work(plan.trial(Geometry(micro_batch=m)), task)) for m in found.uses}
    except NotTraceable as error:
        return {"reason": str(error)}
    small = min((m for m in found.uses if m > 1), default=1)
    return {
        "reason": "",
        "micro_batch": found.micro_batch,
        "capped": found.capped,
        "model": dataclasses.asdict(found.model),
        "uses": [_plain(one) for one in found.uses.values()],
        "grows": list(_grows(found.uses[small], use)) if small < micro else [],
        "accumulation": accumulation_finding(grown) or "",
        "savers": {name: {"changes": savers[name], "use": _plain(one)} for name, one in variants.items()},
        "remedies": [dataclasses.asdict(one) for one in _remedies(plan, trial, use)],
        "work": works,
        "unsure": find_largest(task.train_data()).unsure,
    }


def _savers(plan: ProbePlan, trial: TrialSpec, use: MemoryUse) -> dict[str, dict[str, object]]:
    """Changes of a trial that save memory, by name, as far as the spec has not made them."""
    found: dict[str, dict[str, object]] = {}
    if not plan.spec.probe.savers:
        return found
    for remedy in _remedies(plan, trial, use):
        cls = remedy.change.get("training.checkpoint_activations")
        if cls and not trial.checkpoint_activations:
            found[f"activation checkpointing of {cls}"] = {"checkpoint_activations": cls}
        if remedy.change.get("training.offload_optimizer"):
            found["optimizer state in host memory"] = {"offload_optimizer": True}
    if trial.precision == "fp32":
        found["bf16"] = {"precision": "bf16"}
    return found


def _remedies(plan: ProbePlan, trial: TrialSpec, use: MemoryUse) -> tuple[Remedy, ...]:
    return remedies(
        use,
        eval_batch=trial.eval_batch,
        precision=trial.precision,
        noise_probe=trial.noise_probe,
        on_cpu=not plan.spec.cluster.gpus_per_worker,
    )


def _grows(small: MemoryUse, large: MemoryUse) -> Iterator[dict[str, Any]]:
    for name, grown in layer_growth(small, large).items():
        yield {"module": name, "layer": large.layers.get(name, ""), "bytes_per_sample": grown}


def _plain(use: MemoryUse) -> dict[str, Any]:
    raw = dataclasses.asdict(use)
    del raw["layers"]
    return raw


def find(plan: ProbePlan, experiment: ProbeExperiment, room: Room, start: int, rooms: Sequence[float]) -> Found:
    """Try micro batches on all workers of a gang, each try in fresh processes, until the largest that fits is known.

    Args:
        plan: the probe.
        experiment: every try is kept in its record, and not made again.
        room: where processes start.
        start: the micro batch to begin with.
        rooms: bytes that each rank may hold.
    """
    world = plan.spec.cluster.workers
    cap = plan.cap(world)
    unit = 1 if start >= cap else 2 ** (max(1, start // _TRIES).bit_length() - 1)
    finder = BatchFinder(cap=cap, start=max(1, start), unit=unit, eval_batch=plan.baseline.eval_batch)
    while (order := finder.next()) is not None:
        asked = {**dataclasses.asdict(order), "world_size": world}
        told = experiment.once(TRIED, asked, functools.partial(_told, plan, room, order, rooms))
        finder.tell([Sight(**sight) for sight in told["sights"]])
        experiment.note(_line(order, told["sights"]))
    assert finder.found is not None
    return finder.found


def _told(plan: ProbePlan, room: Room, order: Order, rooms: Sequence[float]) -> dict[str, Any]:
    return {"sights": _try(plan, room, order, rooms)}


def _try(plan: ProbePlan, room: Room, order: Order, rooms: Sequence[float]) -> list[dict[str, Any]]:
    spec = plan.trial(Geometry(micro_batch=order.micro_batch, world_size=room.workers)).to_dict()
    try:
        with room.fresh() as probers:
            probers.join(room.workers)
            return probers.try_batch(spec, dataclasses.asdict(order), rooms)
    except ProberDied as death:
        silent = Sight(fits=True)
        dead = Sight(fits=False, out_of_memory=death.no_memory, message=str(death))
        return [dataclasses.asdict(dead if rank == death.rank else silent) for rank in range(room.workers)]


def _line(order: Order, sights: Sequence[Mapping[str, Any]]) -> str:
    wrong = next((f"rank {rank}: {sight['message']}" for rank, sight in enumerate(sights) if not sight["fits"]), "")
    what = f"micro batch {order.micro_batch}" + ("" if order.updates else f", evaluation batch {order.eval_batch}")
    peak = max(sight["peak_bytes"] for sight in sights)
    return f"{what}: {f'does not fit ({wrong[:160]})' if wrong else f'fits, {peak / 2**20:,.0f} MiB'}"
