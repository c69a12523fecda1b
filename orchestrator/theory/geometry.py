"""Where an update runs: its split into micro batches and workers, and the nodes that these workers stand on."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.theory._checks import whole
from orchestrator.theory.batch_plan import BatchPlan


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """One way to make an update.

    Attributes:
        micro_batch: samples of one forward and backward pass of one worker.
        accumulation: such passes per worker and update, >= 1.
        world_size: workers.
        nodes: machines that hold the workers, at most `world_size`.

    Raises:
        ValueError: for a count below 1, or more nodes than workers.

    >>> Geometry(micro_batch=8, accumulation=2, world_size=4, nodes=2).global_batch
    64
    """

    micro_batch: int
    accumulation: int = 1
    world_size: int = 1
    nodes: int = 1

    def __post_init__(self) -> None:
        for name in ("micro_batch", "accumulation", "world_size", "nodes"):
            whole(name, getattr(self, name))
        if self.nodes > self.world_size:
            raise ValueError(f"nodes = {self.nodes}: must be at most the {self.world_size} workers")

    @property
    def global_batch(self) -> int:
        """Samples an update, over all workers."""
        return self.micro_batch * self.accumulation * self.world_size

    @property
    def plan(self) -> BatchPlan:
        """The split without the nodes."""
        return BatchPlan(
            global_batch=self.global_batch,
            micro_batch=self.micro_batch,
            accumulation=self.accumulation,
            world_size=self.world_size,
        )

    def __str__(self) -> str:
        return f"{self.plan}{f' on {self.nodes} nodes' if self.nodes > 1 else ''}"
