"""A pool of gangs with their mailbox, started together and taken down together."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.capacity import workers_on
from orchestrator.cluster.gang import Gang, GangShape
from orchestrator.cluster.jobs import Known
from orchestrator.cluster.mailbox import Journal, MailboxActor, Score
from orchestrator.cluster.session import Session, draining, free_nodes
from orchestrator.cluster.worker import WorkerSettings
from orchestrator.errors import GangError, OrchestratorError

CLOSE_TIMEOUT_S = 60.0  # on a cluster that others use after us
HURRIED_CLOSE_S = 12.0  # when something broke, or somebody pressed Ctrl-C
NODES_POLL_S = 2.0


class Pool:
    """Gangs that start in the background as soon as the pool is entered.

    Args:
        session: the connection to Ray.
        shape: the workers of each gang.
        gangs: how many.
        settings: what the workers are told; ``gang`` is set for each.
        open_journal: opens what the mailbox writes, in the mailbox's process on the driver's node; picklable.
        score: the objective's value of a finished trial; picklable.
        storage: a folder for Ray Train's own records.
        known: what an earlier process recorded of trials that have not ended.
    """

    def __init__(
        self,
        *,
        session: Session,
        shape: GangShape,
        gangs: int,
        settings: WorkerSettings,
        open_journal: Callable[[], Journal],
        score: Score,
        storage: str,
        known: Mapping[str, Known] | None = None,
    ) -> None:
        self.size = gangs
        here = NodeAffinitySchedulingStrategy(session.driver_node_id, soft=False)
        actor = ray.remote(num_cpus=0, max_concurrency=1000, scheduling_strategy=here)(MailboxActor)
        self.mailbox = actor.remote(open_journal, score, gangs, known)

        def room() -> int:
            return sum(workers_on(node, shape.per_worker) for node in free_nodes())

        self._gangs = [
            Gang(shape, dataclasses.replace(settings, gang=index), self.mailbox, storage, room)
            for index in range(gangs)
        ]
        self._closed = threading.Event()
        self.in_a_hurry = False

    def __enter__(self) -> Pool:
        for gang in self._gangs:
            gang.start()
        threading.Thread(target=self._watch_nodes, name="node-watch", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def submit(self, trial: str, spec: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """Queue a trial, as `Mailbox.submit` does."""
        self.answer(self.mailbox.submit.remote(trial, spec, info))

    def append(self, event: str, **fields: Any) -> None:
        """Write an event into the journal; returns once it is durable."""
        self.answer(self.mailbox.append.remote(event, fields))

    def cancel(self, trial: str, by: str | None) -> bool:
        """Stop a trial at its next evaluation, for which this does not wait; False if it has ended by itself.

        `by` is the policy that stops it, or None if nobody can follow it any more: that is a failure.
        """
        return bool(self.answer(self.mailbox.cancel.remote(trial, by)))

    def check(self) -> None:
        """Do nothing if trials can be trained.

        Raises:
            GangError: no gang is left.
            OrchestratorError: the record cannot be written any more.
        """
        status = self.answer(self.mailbox.status.remote())
        if status["lost"]:
            raise OrchestratorError(status["lost"])
        if status["broken"]:
            raise GangError(f"no worker group could be kept: {status['broken']}")

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait for trials that were stopped to reach their next evaluation."""
        return bool(self.answer(self.mailbox.wait_until_idle.remote(timeout_s)))

    def send_home(self) -> None:
        """Let every gang stop where it is and end; nothing that gangs say is kept from here on."""
        self.answer(self.mailbox.close.remote())

    def close(self) -> None:
        """Send every gang home and wait, not long if `in_a_hurry`; what is left dies with the connection to Ray."""
        self._closed.set()
        with contextlib.suppress(GangError):  # of a mailbox that is gone the gangs learn by themselves
            self.send_home()
        deadline = time.monotonic() + (HURRIED_CLOSE_S if self.in_a_hurry else CLOSE_TIMEOUT_S)
        for gang in self._gangs:
            gang.join(max(0.0, deadline - time.monotonic()))
        ray.kill(self.mailbox)

    def answer(self, reference: Any) -> Any:
        """The mailbox's answer to what was asked of it.

        Raises:
            GangError: the mailbox is gone, or could not do it.
        """
        try:
            return ray.get(reference)
        except RayError as error:
            if isinstance(error, ActorDiedError):  # its text is about every cause that there may be
                raise GangError("the process that keeps the record died") from error
            cause = error.cause if isinstance(error, RayTaskError) else error
            raise GangError(f"the process that keeps the record failed: {str(cause).strip()}") from error

    def _watch_nodes(self) -> None:
        """Tell gangs of nodes that are about to be taken away, in time for a checkpoint."""
        told: list[str] = []
        with contextlib.suppress(RayError):
            while not self._closed.wait(NODES_POLL_S):
                going = draining()
                if going and going != told:
                    ray.get(self.mailbox.preempt.remote(going))
                told = going
