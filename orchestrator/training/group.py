"""The few collectives that training needs, so that one process, gloo and NCCL look alike."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Group(Protocol):
    """Data-parallel workers that train one trial together. Every method but the attributes is collective."""

    rank: int
    world_size: int
    device: torch.device

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum `tensor` over the ranks, in place."""

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's picklable `value`, by rank, on every rank."""

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's `value` on every rank."""


class Solo:
    """One worker alone."""

    rank = 0
    world_size = 1

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def all_reduce(self, tensor: Tensor) -> None:
        """Nothing to add."""

    def gather_objects(self, value: Any) -> list[Any]:
        """The only value."""
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        """The only value."""
        return value


class ProcessGroup:
    """The default process group of ``torch.distributed``; objects travel over gloo, tensors over the device's own."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._objects = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum over the ranks, in place."""
        dist.all_reduce(tensor)

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's value."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._objects)
        return values

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's value."""
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._objects)
        return box[0]
