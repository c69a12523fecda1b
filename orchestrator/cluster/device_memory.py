"""How much memory the device of one worker has: a GPU's own, or on CPUs a worker's part of its node's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import ray
import torch
from ray.exceptions import RayError

from orchestrator.cluster.capacity import Node, workers_on
from orchestrator.cluster.session import is_local
from orchestrator.errors import ResourceError

_ASK_TIMEOUT_S = 120.0


def device_memory(nodes: Sequence[Node], per_worker: Mapping[str, float], *, workers: int) -> float:
    """Bytes that the device with the least memory gives one worker.

    Args:
        nodes: what is there; where a cluster is connected, it is asked for its GPUs.
        per_worker: resources of one worker.
        workers: of one gang.

    Raises:
        ResourceError: no device answers.
    """
    if per_worker.get("GPU"):
        return _gpu_bytes(per_worker) * min(1.0, per_worker["GPU"])
    found = [
        node.resources["memory"] / min(workers, held)
        for node in nodes
        if (held := workers_on(node, per_worker)) and "memory" in node.resources
    ]
    if not found:
        raise ResourceError("no node tells its memory", key="cluster.device_memory", remedy="write it, such as 16GiB")
    return min(found)


def _gpu_bytes(per_worker: Mapping[str, float]) -> float:
    if is_local():
        sizes = [torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count())]
        return float(min(sizes, default=math.nan))
    ask = ray.remote(num_cpus=0, num_gpus=per_worker["GPU"], max_retries=0)(_total_bytes)
    try:
        return float(ray.get(ask.remote(), timeout=_ASK_TIMEOUT_S))
    except RayError as error:
        raise ResourceError(
            "no GPU of the cluster told its memory",
            key="cluster.device_memory",
            remedy="write it, such as 80GiB",
        ) from error


def _total_bytes() -> int:
    return int(torch.cuda.get_device_properties(0).total_memory)
