"""Whether every node that may train reaches the run directory: a checkpoint is written on one and read on another."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.capacity import workers_on
from orchestrator.cluster.session import Session
from orchestrator.errors import StorageError
from orchestrator.storage import join, read, remove, write_atomically

_TIMEOUT_S = 60.0  # the first task on a node starts a process there


def check_shared(folder: str, session: Session, per_worker: Mapping[str, float]) -> None:
    """Write a file into `folder` and let every node read it that can hold a worker.

    Raises:
        StorageError: names the nodes that do not see it, and the remedy.
    """
    others = [n for n in session.nodes if n.node_id != session.driver_node_id and workers_on(n, per_worker)]
    if not others:
        return
    name, word = f".seen-{uuid.uuid4().hex}", uuid.uuid4().bytes
    probe = join(folder, name)
    write_atomically(probe, word)
    try:
        answers = {
            node.name: ray.remote(read)
            .options(
                num_cpus=0,
                max_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            )
            .remote(probe)
            for node in others
        }
        blind = [name for name, answer in answers.items() if _answer(answer) != word]
    finally:
        with contextlib.suppress(StorageError):
            remove(probe)
    if blind:
        raise StorageError(
            f"every node that trains must reach it, and what the driver writes there is not seen on {', '.join(blind)}",
            key="--out",
            value=folder,
            remedy="use a folder on a disk that all nodes share, or s3://bucket/folder, or checkpoint.every_s: null",
        )


def _answer(reference: ray.ObjectRef[bytes]) -> bytes | None:
    try:
        found: bytes = ray.get(reference, timeout=_TIMEOUT_S)
    except (RayError, OSError, StorageError, TimeoutError):
        return None
    return found
