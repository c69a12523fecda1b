"""The connection to Ray: a cluster that is there (``RAY_ADDRESS``, a Ray job, an open session), or a local one."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import ray

from orchestrator.cluster.capacity import Node
from orchestrator.errors import ResourceError

# Ray Train looks at its workers this often; its default of 2 s would be most of a restart.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
# How long a restarted group waits for room before we look whether it has to shrink.
os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "20")


@dataclass(frozen=True, kw_only=True)
class Session:
    """A live connection: the nodes with what is free on them, and where the driver is."""

    nodes: tuple[Node, ...]
    driver_node_id: str
    driver_ip: str


def is_local() -> bool:
    """Whether `connect` would start a Ray of its own."""
    return not ray.is_initialized() and not os.environ.get("RAY_ADDRESS")


def local_node() -> Node:
    """The node that a Ray of our own would have."""
    resources = {
        "CPU": float(len(os.sched_getaffinity(0))),
        "memory": float(psutil.virtual_memory().available),
    }
    try:
        import torch

        if torch.cuda.is_available():
            resources["GPU"] = float(torch.cuda.device_count())
    except ImportError:
        pass
    return Node(name="this machine", resources=resources)


@contextmanager
def connect(modules: Sequence[str] = ()) -> Iterator[Session]:
    """Connect to Ray, and disconnect at the end if this opened the connection.

    Args:
        modules: the user's modules (a task's) that workers must be able to import. On a cluster that this process is
            not a job of, they travel with our own package; in a job Ray's working directory carries them.

    Raises:
        ResourceError: the cluster at ``RAY_ADDRESS`` does not answer.
    """
    if ray.is_initialized():
        yield _describe()
        return
    address = os.environ.get("RAY_ADDRESS")
    in_job = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as staging:
        runtime_env = {"working_dir": _stage(Path(staging), modules)} if address and not in_job else None
        try:
            ray.init(
                # Without an address, Ray would look for a cluster that was started on this machine, dead or alive.
                address=address or "local",
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env=runtime_env,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ResourceError(
                f"the Ray cluster must answer ({str(error).strip().splitlines()[0]})",
                key="RAY_ADDRESS",
                value=address,
                remedy="start it, correct the address or its token (RAY_AUTH_MODE, RAY_AUTH_TOKEN), or unset it",
            ) from error
        try:
            yield _describe()
        finally:
            ray.shutdown()


def free_nodes() -> tuple[Node, ...]:
    """The living nodes with what is free on them at this moment; those about to be taken away are left out."""
    free, going = ray._private.state.available_resources_per_node(), draining()
    return tuple(
        Node(name=node["NodeManagerAddress"], resources=free.get(node["NodeID"], {}), node_id=node["NodeID"])
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] not in going
    )


def draining() -> list[str]:
    """Ids of nodes that are about to be taken away."""
    return list(ray._private.state.state.get_draining_nodes())


def _describe() -> Session:
    return Session(
        nodes=free_nodes(),
        driver_node_id=ray.get_runtime_context().get_node_id(),
        driver_ip=ray.util.get_node_ip_address(),
    )


def _stage(folder: Path, modules: Sequence[str]) -> str:
    """Copy our package and the user's top-level modules into `folder`, which workers get as their working directory."""
    for name in {"orchestrator", *(module.split(".")[0] for module in modules)}:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        source = Path(spec.origin)
        if source.name == "__init__.py":
            ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(source.parent, folder / name, ignore=ignore, dirs_exist_ok=True)
        else:
            shutil.copy(source, folder / source.name)
    return str(folder)
