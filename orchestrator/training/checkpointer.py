"""When a trial makes its checkpoints, and how it goes on from one: what all ranks do together, and what rank 0 does."""

from __future__ import annotations

import logging
import threading
import time

from orchestrator.config.trial import TrialSpec
from orchestrator.training.checkpoint import Checkpoints, at, latest, read, write
from orchestrator.training.failures import Guard, first_failure
from orchestrator.training.group import Group
from orchestrator.training.parts import Parts
from orchestrator.training.progress import Progress
from orchestrator.training.records import Failure
from orchestrator.training.state import State, own_state, pack, restore, shared_state, unpack

_log = logging.getLogger(__name__)


class Checkpointer:
    """Makes one trial's checkpoints. On the training path it only copies; rank 0 writes in a thread, one at a time.

    Args:
        policy: None makes none.
    """

    def __init__(self, policy: Checkpoints | None, group: Group) -> None:
        self._policy = policy if policy and policy.every_s is not None else None
        self._group = group
        self._last_s = time.monotonic()
        self._writer: threading.Thread | None = None
        self._unwritten: list[str] = []

    def due(self) -> bool:
        """Whether rank 0 wants a checkpoint now; its clock decides for all, and the others never want one."""
        if self._policy is None or self._policy.every_s is None or self._group.rank != 0:
            return False
        writing = self._writer is not None and self._writer.is_alive()
        return not writing and time.monotonic() - self._last_s >= self._policy.every_s

    def save(
        self,
        spec: TrialSpec,
        parts: Parts,
        progress: Progress,
        *,
        wanted: bool,
        failure: Failure | None,
        metrics: dict[str, float],
    ) -> None:
        """Take the trial's state on all ranks together, and begin to write it. What goes wrong is told in `notes`.

        Args:
            wanted: on rank 0, whether it is to be written after all.
            failure: of this rank and not yet known to the others. If any has one, there is nothing worth keeping.
            metrics: of the evaluation just made; empty between evaluations.
        """
        policy = self._policy
        if policy is None:
            return
        own: State = {}
        with Guard(self._group.rank, "evaluation") as guard:
            own = own_state(parts, self._group.device)
        buffers = own.pop("buffers", None)
        ranks = self._group.gather_objects((failure is not None, guard.failure, own))
        equal = all(own.get("digest") == ranks[0][2].get("digest") for *_, own in ranks)
        every_buffers = [buffers] if equal else self._group.gather_objects(buffers)
        if self._group.rank != 0 or not wanted or any(failed for failed, *_ in ranks):
            return
        self._last_s = time.monotonic()
        broken = first_failure(failed for _, failed, _ in ranks)
        if broken:
            self._gave_up(progress.samples_seen, f"{broken.kind}: {broken.message}")
            return
        try:
            state = shared_state(spec, parts, progress)
        except Exception as error:  # noqa: BLE001  no checkpoint is worth a trial
            self._gave_up(progress.samples_seen, f"{type(error).__name__}: {error}")
            return
        state |= {"generators": [own["generators"] for *_, own in ranks], "buffers": every_buffers}
        self._join()
        work = (policy, progress.samples_seen, state, metrics.get(policy.metric))
        self._writer = threading.Thread(target=self._write, args=work, name="checkpoint", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Wait for what is still being written."""
        self._join()

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be written, in a sentence, for the outcome; known to rank 0."""
        if not self._unwritten:
            return ()
        return (f"{len(self._unwritten)} checkpoint(s) could not be made; the first {self._unwritten[0]}",)

    def _write(self, policy: Checkpoints, samples_seen: int, state: State, value: float | None) -> None:
        try:
            write(policy, samples_seen, pack(state), value)
        except Exception as error:  # noqa: BLE001  the checkpoint before stays valid, and training goes on
            self._gave_up(samples_seen, f"{type(error).__name__}: {error}")

    def _gave_up(self, samples_seen: int, cause: str) -> None:
        self._unwritten.append(f"after {samples_seen} samples: {cause}")
        _log.warning("no checkpoint after %d samples, training goes on: %s", samples_seen, cause)

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None


def pick(policy: Checkpoints | None, spec: TrialSpec, group: Group) -> State | Failure | None:
    """The newest whole checkpoint of the trial, or the one that it branches off, read on every rank; rank 0 chooses.

    Returns:
        The state, None where there is none, or on all ranks the same failure if it cannot be gone on from.
    """
    guard, chosen = Guard(group.rank, "setup"), None
    if group.rank == 0:
        with guard:
            if policy is not None and (newest := latest(policy.folder)) is not None:
                chosen = (policy.folder, newest, spec.trajectory)
            elif (start := spec.start) is not None:
                chosen = (start.folder, at(start.folder, start.samples_seen), start.trajectory)
    if policy is None and spec.start is None:
        return None
    chosen, failure = group.broadcast_object((chosen, guard.failure))
    if chosen is None or failure is not None:
        return failure  # type: ignore[no-any-return]
    state: State = {}
    with guard:
        folder, entry, trajectory = chosen
        state = unpack(read(folder, entry), trajectory)
    return first_failure(group.gather_objects(guard.failure)) or state


def resume(state: State, parts: Parts, group: Group, *, branch: bool) -> Failure | None:
    """Go on from `state` on all ranks, or branch off it; the failure, the same on all, if one could not."""
    with Guard(group.rank, "setup") as guard:
        restore(state, parts, group.rank, group.device, branch=branch)
    return first_failure(group.gather_objects(guard.failure))
