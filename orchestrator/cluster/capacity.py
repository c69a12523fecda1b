"""How many gangs a cluster can hold. Pure: nodes and needs in, a count or a refusal out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import ResourceError

_SLACK = 1e-6
_TYPE = "accelerator_type:"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node's name, its resources as Ray counts them (``CPU``, ``GPU``, ``memory`` in bytes, ...), and Ray's id."""

    name: str
    resources: Mapping[str, float]
    node_id: str = ""


def workers_on(node: Node, per_worker: Mapping[str, float]) -> int:
    """Workers that one node can hold; a worker never spans nodes."""
    counts = [int((node.resources.get(name, 0.0) + _SLACK) // need) for name, need in per_worker.items() if need > 0]
    return min(counts, default=0)


def accelerators(nodes: Sequence[Node]) -> str:
    """The accelerators of a cluster by the names that Ray gives them, or ``gpu`` where it does not know any."""
    names = {name.removeprefix(_TYPE) for node in nodes for name in node.resources if name.startswith(_TYPE)}
    return ", ".join(sorted(names)) or "gpu"


def count_gangs(
    nodes: Sequence[Node],
    *,
    workers: int,
    per_worker: Mapping[str, float],
    asked: int | None,
    trials: int,
    file: str | None = None,
) -> int:
    """Gangs to start: as many as fit (or as `asked`), and no more than there are trials.

    Args:
        nodes: what is there.
        workers: workers a gang.
        per_worker: resources of one worker.
        asked: gangs that the user wants, or None for as many as fit.
        trials: trials at most; more gangs than that would idle.
        file: the spec's file, for the message.

    Raises:
        ResourceError: not even one gang, or not `asked` gangs, fit; names need and supply.
    """
    fit = sum(workers_on(node, per_worker) for node in nodes) // workers
    need = ", ".join(f"{value:g} {name}" for name, value in per_worker.items() if value > 0)
    supply = "; ".join(
        f"{node.name} has " + ", ".join(f"{node.resources.get(name, 0.0):g} {name}" for name in per_worker)
        for node in nodes
    )
    wanted = asked or 1
    if fit < wanted:
        total = {name: value * workers * wanted for name, value in per_worker.items() if value > 0}
        whole = ", ".join(f"{value:g} {name}" for name, value in total.items())
        raise ResourceError(
            f"{wanted} gang(s) of {workers} worker(s) with {need} each need {whole}, but {supply or 'there is none'}",
            file=file,
            key="cluster.gangs" if asked and fit else "cluster.workers",
            value=asked if asked and fit else workers,
            remedy=f"use cluster.gangs: {fit}"
            if fit
            else "use fewer workers, less for each (cluster.cpus_per_worker, .gpus_per_worker), or a larger cluster",
        )
    return min(asked or fit, max(1, trials))
