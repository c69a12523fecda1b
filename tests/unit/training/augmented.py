"""Data sets that loader processes can import: random, broken, and fetched."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch


class Augmented:
    """A plain map-style data set that draws from every global generator; an item also tells its process."""

    def __init__(self, size: int = 50, *, broken_at: int | None = None) -> None:
        self.size, self.broken_at = size, broken_at

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.broken_at:
            raise OSError(f"item {index} cannot be read")
        draws = torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()], dtype=torch.float64)
        return {"index": index, "draws": draws, "pid": os.getpid()}


class Fetched(Augmented):
    """The same as a whole batch, with the randomness it is given."""

    def fetch(self, indices: Any, draws: Any) -> dict[str, Any]:
        numbers = np.zeros((len(indices), 3)) if draws is None else draws.uniform(3)
        pids = torch.full((len(indices),), os.getpid())
        return {"index": torch.from_numpy(indices), "draws": torch.from_numpy(numbers), "pid": pids}


class Short(Fetched):
    """Returns one row less than asked for."""

    def fetch(self, indices: Any, draws: Any) -> dict[str, Any]:
        return super().fetch(indices[1:], None)


class Deadly(Augmented):
    """Kills the process that reads an item."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        os._exit(3)
