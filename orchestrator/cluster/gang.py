"""A gang, seen from the driver: one long Ray Train run in a thread, started again while it is of use."""

from __future__ import annotations

import dataclasses
import logging
import threading
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.exceptions import WorkerGroupError

from orchestrator.cluster.worker import WorkerSettings, gang_main

logger = logging.getLogger(__name__)

RESTARTS = 3  # of one Ray Train run; a gang that did some work meanwhile gets another run


@dataclass(frozen=True, kw_only=True)
class GangShape:
    """Workers of a gang and what each of them reserves."""

    workers: int
    per_worker: dict[str, float]
    collective_timeout_s: float = 600.0

    @property
    def gpus(self) -> float:
        """GPUs a worker."""
        return self.per_worker.get("GPU", 0.0)


class Gang(threading.Thread):
    """Runs `gang_main` on `shape.workers` Ray Train workers until the mailbox closes.

    Args:
        shape: the workers.
        settings: what they are told.
        mailbox: handle of the `Mailbox` actor.
        storage: folder for Ray Train's own records.
    """

    def __init__(self, shape: GangShape, settings: WorkerSettings, mailbox: Any, storage: str) -> None:
        super().__init__(name=f"gang-{settings.gang}", daemon=True)
        self._shape, self._settings, self._mailbox, self._storage = shape, settings, mailbox, storage

    def run(self) -> None:
        """Start the workers, again and again while they take trials."""
        try:
            while self._run_once():
                pass
        except RayError:  # the mailbox is gone, and the sweep with it
            logger.exception("gang %d", self._settings.gang)

    def _run_once(self) -> bool:
        """One Ray Train run; whether there should be another."""
        gang = self._settings.gang
        seen = ray.get(self._mailbox.status.remote())["trials_taken"][gang]
        try:
            self._trainer().fit()
        except Exception as error:  # whatever Ray Train raises, this run is over
            logger.exception("gang %d", gang)
            return bool(ray.get(self._mailbox.gang_failed.remote(gang, _cause(error), seen)))
        return self._settings.one_trial and not ray.get(self._mailbox.closing.remote())

    def _trainer(self) -> TorchTrainer:
        return TorchTrainer(
            gang_main,
            train_loop_config={"settings": dataclasses.asdict(self._settings), "mailbox": self._mailbox},
            torch_config=TorchConfig(
                backend="nccl" if self._shape.gpus else "gloo", timeout_s=int(self._shape.collective_timeout_s)
            ),
            scaling_config=ScalingConfig(
                num_workers=self._shape.workers,
                use_gpu=self._shape.gpus > 0,
                resources_per_worker=dict(self._shape.per_worker),
            ),
            run_config=RunConfig(
                name=f"gang-{self._settings.gang}",
                storage_path=self._storage,
                # Workers that cannot start (no room any more, no import) are tried for ever unless it is limited.
                failure_config=FailureConfig(
                    max_failures=0 if self._settings.one_trial else RESTARTS, controller_failure_limit=RESTARTS
                ),
            ),
        )


def _cause(error: BaseException) -> str:
    """The innermost cause in one line; of several workers, each that says something else."""
    if isinstance(error, WorkerGroupError):
        said = {_cause(failure): rank for rank, failure in sorted(error.worker_failures.items(), reverse=True)}
        return "; ".join(f"rank {rank}: {text}" for text, rank in sorted(said.items(), key=lambda item: item[1])[:3])
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1]
