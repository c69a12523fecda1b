"""The formula of the step time: computation, communication, and how far the two overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.theory.fieller import Array
from orchestrator.theory.geometry import Geometry

NAMES = (
    "pass_s",
    "sample_s",
    "update_s",
    "local_s",
    "local_worker_s",
    "across_s",
    "across_worker_s",
    "crowding",
    "overlap",
)
"""Parameters of `step_seconds`, in the order of its argument; those in seconds end in ``_s``."""


@dataclass(frozen=True)
class Layout:
    """Geometries as columns, float ``[n]`` each."""

    micro: Array
    accumulation: Array
    workers: Array
    nodes: Array

    @classmethod
    def of(cls, geometries: Sequence[Geometry]) -> Layout:
        """The columns of `geometries`."""
        rows = [(g.micro_batch, g.accumulation, g.world_size, g.nodes) for g in geometries]
        return cls(*np.array(rows, dtype=np.float64).T)

    @property
    def local(self) -> Array:
        """1 where several workers stand on one node."""
        return np.asarray((self.workers > 1) & (self.nodes == 1), dtype=np.float64)

    @property
    def across(self) -> Array:
        """1 where workers stand on several nodes."""
        return np.asarray(self.nodes > 1, dtype=np.float64)

    def most_workers(self, *, across: bool) -> int:
        """The most workers on one node, or across nodes; 0 where there are none."""
        return int(np.max(self.workers * (self.across if across else self.local)))

    def typical(self, name: str) -> float:
        """What a parameter in seconds is multiplied by, typically."""
        if name == "sample_s":
            return float(np.median(self.micro))
        return float(np.median(self.workers)) if name.endswith("worker_s") else 1.0


def step_seconds(values: Array, layout: Layout) -> Array:
    r"""Seconds of an update.

    .. math::
        T = (a - 1)\,T_{grad} + (T_{grad}^{\gamma} + T_{sync}^{\gamma})^{1/\gamma} + u, \qquad
        T_{grad} = (\alpha + \beta m)(1 + \kappa (W/N - 1)), \qquad T_{sync} = \delta + \epsilon\,(W - 2)

    for micro batch m, accumulation a (passes an update, so that a - 1 of them run without communication) and W workers
    on N nodes;
    :math:`\delta, \epsilon` are ``local_s`` and ``local_worker_s`` on one node, ``across_s`` and ``across_worker_s`` on
    several, and 0 for one worker. :math:`\alpha` is ``pass_s``, :math:`\beta` ``sample_s``. :math:`\gamma`
    (``overlap``) goes from 1, one after the other, to 10, the longer hides the shorter. u (``update_s``) is what an
    update costs however large it is, such as the optimizer. :math:`\kappa` (``crowding``) is by how much each further
    worker of a node slows the others' passes, as those on one CPU do. Both are ours: Pollux counts u into the passes,
    and on GPUs :math:`\kappa` is about 0.

    Assumed: workers are alike, and the batch of a pass alone decides its time.
    Source: Qiao et al. 2021 (Pollux, OSDI), section 3.2, where s = a - 1.

    Args:
        values: in the order of `NAMES`, >= 0, the last one >= 1.
        layout: n geometries.

    Returns:
        Seconds, ``[n]``.

    >>> one = Layout.of([Geometry(micro_batch=10, accumulation=3), Geometry(micro_batch=10, world_size=2)])
    >>> step_seconds(np.array([2.0, 1.0, 0.5, 5.0, 0.0, 0.0, 0.0, 0.0, 2.0]), one).tolist()
    [36.5, 13.5]
    """
    pass_s, sample_s, update_s, local_s, local_worker_s, across_s, across_worker_s, crowding, overlap = values
    gradient = (pass_s + sample_s * layout.micro) * (1.0 + crowding * (layout.workers / layout.nodes - 1.0))
    more = np.maximum(layout.workers - 2.0, 0.0)
    sync = layout.local * (local_s + local_worker_s * more) + layout.across * (across_s + across_worker_s * more)
    # The larger one in front, so that no power overflows or vanishes.
    large, small = np.maximum(gradient, sync), np.minimum(gradient, sync)
    together = large * (1.0 + (small / large) ** overlap) ** (1.0 / overlap)
    found: Array = (layout.accumulation - 1.0) * gradient + together + update_s
    return found


def free_parameters(layout: Layout) -> tuple[str, ...]:
    """The names of the parameters that timings of such geometries can tell.

    >>> free_parameters(Layout.of([Geometry(micro_batch=b) for b in (1, 2, 4)]))
    ('pass_s', 'sample_s')
    """
    found = ["pass_s", "sample_s"]
    if len(np.unique(layout.accumulation)) > 1:
        found.append("update_s")
    for place, there in (("local", layout.local), ("across", layout.across)):
        counts = np.unique(layout.workers[there > 0])
        found += [f"{place}_s"][: len(counts)]
        found += [f"{place}_worker_s"][: max(0, len(counts) - 1)]
    alone = layout.accumulation[layout.workers == layout.nodes]
    crowded = layout.accumulation[layout.workers > layout.nodes]
    # Passes without communication tell how workers slow each other; with it, the two cannot be told apart.
    if len(alone) and len(np.unique(crowded)) > 1:
        found.append("crowding")
    shared = (layout.workers > 1) & (layout.accumulation == np.min(layout.accumulation))
    if len(np.unique(layout.micro[shared])) > 2:
        found.append("overlap")
    return tuple(found)
