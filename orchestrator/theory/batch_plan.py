"""How a global batch is made: micro batch x accumulation x world size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """One global batch, split: ``global_batch == micro_batch * accumulation * world_size``.

    Raises:
        ValueError: if a factor is below 1 or the product does not hold.
    """

    global_batch: int
    micro_batch: int
    accumulation: int
    world_size: int

    def __post_init__(self) -> None:
        for name in ("global_batch", "micro_batch", "accumulation", "world_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} = {value!r}: must be a whole number of at least 1")
        if self.micro_batch * self.accumulation * self.world_size != self.global_batch:
            raise ValueError(
                f"micro {self.micro_batch} x accumulation {self.accumulation} x world {self.world_size} "
                f"is {self.micro_batch * self.accumulation * self.world_size}, not the global batch {self.global_batch}"
            )

    @property
    def per_worker_batch(self) -> int:
        """Samples that one worker contributes to an update."""
        return self.micro_batch * self.accumulation
