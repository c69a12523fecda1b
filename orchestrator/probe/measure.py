"""Carries a prepared probe out: memory predicted, updates timed in the processes of a gang, the ceiling tried."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cluster.prober import ProberSettings
from orchestrator.cluster.probers import Room
from orchestrator.errors import CheckFailed, TrialError
from orchestrator.probe import memory
from orchestrator.probe.experiment import ProbeExperiment
from orchestrator.probe.plan import ProbePlan
from orchestrator.probe.record import DEVICE, DONE, FOUND, PREDICTED
from orchestrator.probe.timing import Clock, time_all
from orchestrator.tracking.uri import make_folder

if TYPE_CHECKING:
    from orchestrator.past import Past
    from orchestrator.preparation import Prepared
    from orchestrator.tracking.run_dir import RunDir

Judging = Callable[[ProbePlan, ProbeExperiment], dict[str, Any]]


def plan_of(prepared: Prepared) -> ProbePlan:
    """What a prepared probe measures."""
    started = prepared.as_started or prepared.spec
    spec = started.model_copy(update={"probe": prepared.spec.probe})
    return ProbePlan(spec=spec, baseline=prepared.baseline, train_samples=prepared.facts.train_samples)


def carry_out(
    prepared: Prepared,
    run_dir: RunDir,
    *,
    past: Past | None = None,
    overrides: Sequence[str] = (),
    judge: Judging = lambda plan, experiment: {},
) -> None:
    """Measure into the run directory, unless that is done, and have `judge` say what follows from it.

    Args:
        judge: called when all is measured, for what is said beside the measurements: ``recommendation``, ``compared``,
            ``sentences``, ``broken``.

    Raises:
        CheckFailed: all is done and told, and the comparison that was asked for did not hold.
        TrialError, GangError, OrchestratorError: the task failed, a process died or hung, or the record cannot be
            written.
    """
    make_folder(prepared.tracking_uri)
    plan = plan_of(prepared)
    parts = prepared.experiment("probe", run_dir, past, overrides)
    with ProbeExperiment(plan=plan, **parts) as experiment:
        asked = plan.spec.probe.model_dump(mode="json")
        if not experiment.knows(DONE, asked):
            _measure(plan, experiment)
            experiment.once(DONE, asked, dict)
        experiment.extra = judge(plan, experiment)
        experiment.finish()
    if reason := experiment.extra.get("broken"):
        raise CheckFailed(reason)


def _measure(plan: ProbePlan, experiment: ProbeExperiment) -> None:
    cluster, probe = plan.spec.cluster, plan.spec.probe
    settings = ProberSettings(
        threads=cluster.threads,
        deterministic=cluster.deterministic,
        import_paths=tuple(os.path.abspath(path) for path in sys.path),
    )
    per_worker = {"CPU": cluster.cpus_per_worker, "GPU": cluster.gpus_per_worker}
    needed = {name: value for name, value in per_worker.items() if value > 0}
    with Room(cluster.workers, needed, settings, timeout_s=cluster.hang_timeout_s) as room:
        with room.fresh() as probers:
            about = probers.about()
            device = _device(about)
            precision = plan.baseline.precision
            kept = experiment.once(DEVICE, {}, lambda: {**device, "roofline": probers.roofline(precision)})
            gflops, gbytes = (kept["roofline"][name] / 1e9 for name in ("flops_per_s", "bytes_per_s"))
            experiment.note(
                f"{len(about)} measuring processes on {device['device']}: {gflops:,.0f} Gflop/s, {gbytes:,.0f} GB/s"
            )
            whole = cluster.device_memory or device["free_bytes"]
            asked = {"device_bytes": int(whole), "margin": cluster.memory_margin}
            predicted = experiment.once(PREDICTED, asked, lambda: memory.predict(plan, whole, cluster.memory_margin))
            ceiling = _ceiling(plan, predicted, experiment)
            changes = {name: saver["changes"] for name, saver in predicted.get("savers", {}).items()}
            clock = Clock(plan=plan, experiment=experiment, probers=probers)
            time_all(clock, ceiling=ceiling, variants=changes, nodes=device["nodes"])
        if probe.memory == "measure" or (probe.memory == "auto" and (cluster.device_memory or cluster.gpus_per_worker)):
            _find(plan, experiment, room, ceiling, about)


def _device(about: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The device with the least memory to itself: processes on one CPU share the machine's."""
    nodes = Counter(one["node"] for one in about)
    free = [one["free_bytes"] / (nodes[one["node"]] if one["device"] == "cpu" else 1) for one in about]
    kinds = sorted({one["device"] for one in about})
    return {
        "device": ", ".join(kinds),
        "free_bytes": int(min(free)),
        "total_bytes": int(min(one["total_bytes"] for one in about)),
        "nodes": len(nodes),
    }


def _ceiling(plan: ProbePlan, predicted: dict[str, Any], experiment: ProbeExperiment) -> int:
    if predicted["reason"]:
        experiment.note(f"memory cannot be predicted: {predicted['reason']}")
        return plan.cap(1)
    found = int(predicted["micro_batch"])
    what = "all samples that there are fit" if predicted["capped"] else "the largest micro batch that fits"
    experiment.note(f"predicted: {found}, {what}")
    if not found:
        raise TrialError(
            "not even a micro batch of one sample fits in the memory that is there; give more (cluster.device_memory), "
            "or see what would free some: " + "; ".join(one["what"] for one in predicted["remedies"])
        )
    return found


def _find(
    plan: ProbePlan, experiment: ProbeExperiment, room: Room, start: int, about: Sequence[dict[str, Any]]
) -> None:
    """The ceiling by tries, from the memory that is free, or that was given."""
    cluster = plan.spec.cluster
    share = 1.0 - cluster.memory_margin
    given = cluster.device_memory
    device = _device(about)
    rooms = [share * min(given or device["free_bytes"], one["free_bytes"]) for one in about]
    found = memory.find(plan, experiment, room, start, rooms)
    told = {
        "micro_batch": found.micro_batch or 0,
        "eval_batch": found.eval_batch,
        "verdict": found.verdict,
        "reason": found.reason,
        "tries": len(found.tries),
        "rooms": rooms,
    }
    experiment.once(FOUND, {}, lambda: told)
    if found.verdict == "failed":
        raise TrialError(found.reason)
