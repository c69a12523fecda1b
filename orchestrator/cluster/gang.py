"""A gang, seen from the driver: one long Ray Train run in a thread, started again while it is of use."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray._raylet import PlacementGroupID
from ray.exceptions import ActorDiedError, RayError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2.api.exceptions import WorkerGroupError
from ray.util.placement_group import PlacementGroup, remove_placement_group

from orchestrator.cluster.worker import WorkerSettings, gang_main

logger = logging.getLogger(__name__)

RESTARTS = 3  # of the workers in one Ray Train run, and of runs in a row that took no trial
GRACE_S = 15.0  # in which the cluster may still bring back what it seems to have lost
ROOM_POLL_S = 2.0


@dataclass(frozen=True, kw_only=True)
class GangShape:
    """Workers of a gang and what each of them reserves.

    Args:
        fewest: workers to go on with at least where the cluster has shrunk.
        wait_s: how long a gang that broke waits for room for them.
    """

    workers: int
    per_worker: dict[str, float]
    fewest: int = 1
    wait_s: float = 300.0
    collective_timeout_s: float = 600.0

    @property
    def gpus(self) -> float:
        """GPUs a worker."""
        return self.per_worker.get("GPU", 0.0)

    def shrunk_to(self, room: int) -> int:
        """The most workers within `room` that divide the gang's number: every global batch then still splits evenly.

        0 if that would be fewer than `fewest`.
        """
        return max((n for n in range(self.fewest, room + 1) if self.workers % n == 0), default=0)


class Gang(threading.Thread):
    """Runs `gang_main` on Ray Train workers until the mailbox closes.

    A broken group is started again by Ray Train, and a run that failed for good by this thread. Where the cluster has
    lost the room for all workers, the gang goes on with fewer, and grows again between two trials when there is room.

    Args:
        shape: the workers.
        settings: what they are told.
        mailbox: handle of the `Mailbox` actor.
        storage: folder for Ray Train's own records.
        room: how many workers of this shape the cluster could hold at this moment, beside those that it holds.
    """

    def __init__(
        self, shape: GangShape, settings: WorkerSettings, mailbox: Any, storage: str, room: Callable[[], int]
    ) -> None:
        super().__init__(name=f"gang-{settings.gang}", daemon=True)
        self._shape, self._settings, self._mailbox, self._storage = shape, settings, mailbox, storage
        self._room = room
        self._ended = threading.Event()  # of the present Ray Train run

    def run(self) -> None:
        """Start the workers again and again: while the sweep goes on, there is room, and something comes of it."""
        gang, workers, fruitless = self._settings.gang, self._shape.workers, 0
        try:
            while not self._closing():
                reason, worked = self._run_once(workers)
                fruitless = 0 if worked or not reason else fruitless + 1
                if fruitless > RESTARTS:
                    return self._give_up(reason)
                if reason or not self._settings.one_trial:  # it left its nodes because they go, or to grow again
                    workers = self._wait_for_room()
                    if not workers:
                        return self._give_up(f"no room for {self._shape.fewest} workers; before that: {reason}")
        except RayError:  # the mailbox is gone, and the sweep with it
            logger.exception("gang %d", gang)

    def _run_once(self, workers: int) -> tuple[str, bool]:
        """One Ray Train run: why it failed (empty if it did not), and whether it took a trial."""
        gang = self._settings.gang
        before = self._trials_taken()
        self._ended.clear()
        if workers < self._shape.workers:
            threading.Thread(target=self._watch_for_room, args=(workers,), daemon=True).start()
        try:
            self._trainer(workers).fit()
        except Exception as error:  # whatever Ray Train raises, this run is over
            logger.exception("gang %d", gang)
            reason = _cause(error)
            _free(ray.get(self._mailbox.gang_failed.remote(gang, reason)))
            return reason, self._trials_taken() > before
        finally:
            self._ended.set()
        return "", True

    def _wait_for_room(self) -> int:
        """Workers to go on with: all of them, or after `GRACE_S` as many as fit; 0 if even the fewest never do."""
        started_at = time.monotonic()
        while not self._closing():
            room, waited_s = self._room(), time.monotonic() - started_at
            if room >= self._shape.workers:
                return self._shape.workers
            if waited_s >= GRACE_S and (fewer := self._shape.shrunk_to(room)):
                return fewer
            if waited_s >= self._shape.wait_s:
                return 0
            time.sleep(ROOM_POLL_S)
        return self._shape.workers

    def _watch_for_room(self, workers: int) -> None:
        while not self._ended.wait(ROOM_POLL_S):
            # What the workers will hold is free until they are placed; before they said hello there is no answer.
            if self._room() + workers >= self._shape.workers and ray.get(
                self._mailbox.regroup.remote(self._settings.gang)
            ):
                return

    def _give_up(self, reason: str) -> None:
        ray.get(self._mailbox.give_up.remote(self._settings.gang, reason))

    def _closing(self) -> bool:
        return bool(ray.get(self._mailbox.closing.remote()))

    def _trials_taken(self) -> int:
        return int(ray.get(self._mailbox.status.remote())["trials_taken"][self._settings.gang])

    def _trainer(self, workers: int) -> TorchTrainer:
        return TorchTrainer(
            gang_main,
            train_loop_config={"settings": dataclasses.asdict(self._settings), "mailbox": self._mailbox},
            torch_config=TorchConfig(
                backend="nccl" if self._shape.gpus else "gloo", timeout_s=int(self._shape.collective_timeout_s)
            ),
            scaling_config=ScalingConfig(
                num_workers=workers,
                use_gpu=self._shape.gpus > 0,
                resources_per_worker=dict(self._shape.per_worker),
            ),
            run_config=RunConfig(
                name=f"gang-{self._settings.gang}",
                storage_path=self._storage,
                # Workers that cannot start (no room any more, no import) are this thread's to start again.
                failure_config=FailureConfig(
                    max_failures=0 if self._settings.one_trial else RESTARTS, controller_failure_limit=0
                ),
            ),
        )


def _free(placement: str | None) -> None:
    """Remove the placement group of a run that failed, if it is still there: Ray Train's own cleaner, which takes over
    when the run's controller dies, asks the dashboard, and a Ray of our own has none."""
    if placement is not None:
        remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(placement))))


def _cause(error: BaseException) -> str:
    """The innermost cause in one line; of several workers, each that says something else."""
    if isinstance(error, WorkerGroupError):
        dead = [rank for rank, failure in error.worker_failures.items() if isinstance(_root(failure), ActorDiedError)]
        if dead:  # what the others met is only that
            return f"the process of rank {', '.join(map(str, sorted(dead)))} died"
        said = {_cause(failure): rank for rank, failure in sorted(error.worker_failures.items(), reverse=True)}
        return "; ".join(f"rank {rank}: {text}" for text, rank in sorted(said.items(), key=lambda item: item[1])[:3])
    error = _root(error)
    if isinstance(error, WorkerGroupStartupTimeoutError):  # its text is for who reads Ray Train's log
        return "it broke, and there is no room for its workers"
    if isinstance(error, ActorDiedError):  # its text is about every cause that there may be
        return "its controller process died"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1]


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
