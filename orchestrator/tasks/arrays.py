"""Samples held as tensors in memory, fetched a batch at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class TensorRows:
    """A `Fetchable` over tensors that share their first dimension; a batch is the tuple of their rows.

    Args:
        tensors: at least one, each of shape ``[n, ...]``.

    Raises:
        ValueError: if the first dimensions differ.
    """

    def __init__(self, *tensors: Tensor) -> None:
        lengths = {len(tensor) for tensor in tensors}
        if len(lengths) != 1:
            raise ValueError(f"tensors of {sorted(lengths)} rows: all must have the same number")
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def fetch(self, indices: np.ndarray[Any, Any], draws: Any) -> tuple[Tensor, ...]:
        """The rows at `indices`, int64 of shape ``[n]``; nothing here is random, so `draws` is not used."""
        rows = torch.from_numpy(np.ascontiguousarray(indices))
        return tuple(tensor.index_select(0, rows) for tensor in self.tensors)
