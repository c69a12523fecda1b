"""One recorded trial, trained again by the machinery of a sweep: one gang, one mailbox, a journal that nobody keeps."""

from __future__ import annotations

import functools
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cluster.capacity import Node, count_gangs, workers_on
from orchestrator.cluster.session import Session
from orchestrator.config.trial import TrialSpec
from orchestrator.errors import GangError, RefusedError
from orchestrator.report.quiet import quiet
from orchestrator.tracking.events import EventLog
from orchestrator.tracking.record import TrialRecord

if TYPE_CHECKING:
    from orchestrator.cluster.pool import Pool

TRIAL = "replay"
_LEAST_CPUS = 0.01
_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """How workers train, as recorded; only what they reserve may be less.

    Args:
        cpus_per_worker: CPUs that Ray reserves for one of them.
        gpus_per_worker: GPUs likewise.
        threads: CPU threads of a worker.
        deterministic: whether torch is held to deterministic algorithms.
        task_files: the task's source, if it is not the installed one.
    """

    cpus_per_worker: float
    gpus_per_worker: float
    threads: int
    deterministic: bool
    task_files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, record: TrialRecord, task_files: Mapping[str, str]) -> Conditions:
        """The conditions of a record.

        Raises:
            RefusedError: it does not tell them.
        """
        threads, deterministic = record.param("threads"), record.param("deterministic")
        if threads is None or deterministic is None:
            rule = "the record must tell threads and determinism"
            raise RefusedError(rule, key="RUN_ID", value=record.run_id, remedy="name a run with these params")
        return cls(
            cpus_per_worker=float(record.param("cluster/cpus_per_worker") or 1.0),
            gpus_per_worker=float(record.param("cluster/gpus_per_worker") or 0.0),
            threads=int(threads),
            deterministic=deterministic == "true",
            task_files=task_files,
        )


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What the gang told: evaluations in order, and the outcome."""

    evaluations: tuple[dict[str, Any], ...]
    outcome: dict[str, Any]


def train_again(
    spec: TrialSpec,
    conditions: Conditions,
    session: Session,
    *,
    stop_at_samples: float = math.inf,
    on_evaluation: Callable[[Mapping[str, Any]], None],
) -> Trained:
    """Train a trial.

    Args:
        spec: the trial.
        conditions: how.
        session: a live connection to Ray.
        stop_at_samples: once this is seen the trial may stop, at its next evaluation.
        on_evaluation: is told each evaluation.

    Raises:
        ResourceError: the cluster cannot hold the workers.
        GangError: no gang could be started or kept.
    """
    per_worker = reservation(session.nodes, spec.plan.world_size, conditions)
    scratch = tempfile.TemporaryDirectory(prefix="orchestrator-replay-", ignore_cleanup_errors=True)
    with scratch as folder, quiet(Path(folder) / "ray.log"):
        return _train(spec, conditions, session, per_worker, folder, stop_at_samples, on_evaluation)


def reservation(nodes: Sequence[Node], workers: int, conditions: Conditions) -> dict[str, float]:
    """What each worker reserves: as recorded, or with ever fewer CPUs until `workers` fit. GPUs are never shared out.

    Raises:
        ResourceError: they fit with no CPUs at all, or not on the GPUs; names need and supply.
    """
    per_worker = {"CPU": conditions.cpus_per_worker}
    if conditions.gpus_per_worker:
        per_worker["GPU"] = conditions.gpus_per_worker
    while sum(workers_on(node, per_worker) for node in nodes) < workers and per_worker["CPU"] > _LEAST_CPUS:
        per_worker["CPU"] /= 2
    count_gangs(nodes, workers=workers, per_worker=per_worker, asked=1, trials=1, file="the record")
    return per_worker


def _train(
    spec: TrialSpec,
    conditions: Conditions,
    session: Session,
    per_worker: dict[str, float],
    folder: str,
    stop_at_samples: float,
    on_evaluation: Callable[[Mapping[str, Any]], None],
) -> Trained:
    # Ray Train takes seconds to import, which a refusal need not wait for.
    from ray.exceptions import RayError

    from orchestrator.cluster.gang import GangShape
    from orchestrator.cluster.pool import Pool
    from orchestrator.cluster.worker import WorkerSettings

    workers = spec.plan.world_size
    pool = Pool(
        session=session,
        shape=GangShape(workers=workers, per_worker=per_worker, fewest=workers, wait_s=_WAIT_S),
        gangs=1,
        settings=WorkerSettings(
            gang=0,
            threads=conditions.threads,
            deterministic=conditions.deterministic,
            one_trial=False,
            import_paths=tuple(os.path.abspath(path) for path in sys.path),
            warm_up=spec.to_dict(),
            task_files=dict(conditions.task_files),
        ),
        open_journal=functools.partial(EventLog, os.path.join(folder, "events.jsonl")),
        score=_no_value,
        storage=folder,
    )
    with pool:
        try:
            return _follow(pool, spec, stop_at_samples, on_evaluation)
        except RayError as error:
            raise GangError(f"the process that carries evaluations failed: {type(error).__name__}") from error


def _follow(
    pool: Pool, spec: TrialSpec, stop_at_samples: float, on_evaluation: Callable[[Mapping[str, Any]], None]
) -> Trained:
    """Hand the trial in and hear of it to its end."""
    import ray

    info = {"key": spec.key, "phase": TRIAL, "number": 0, "params": {}, "repeat_of": None}
    ray.get(pool.mailbox.submit.remote(TRIAL, spec.to_dict(), info))
    evaluations: list[dict[str, Any]] = []
    seen = -1
    while True:
        message = ray.get(pool.mailbox.next_message.remote(TRIAL, seen))
        if "over" in message:
            break
        seen = message["samples_seen"]
        evaluations.append(message)
        on_evaluation(message)
        if seen >= stop_at_samples:
            pool.cancel(TRIAL, TRIAL)
    if "outcome" not in message:
        pool.check()
        raise GangError(f"the trial was interrupted: {message['interrupted']}")
    return Trained(evaluations=tuple(evaluations), outcome=message["outcome"])


def _no_value(evaluations: list[dict[str, Any]], outcome: dict[str, Any]) -> None:
    """A replay has no objective."""
