"""What may be done to a batch whose structure only its task knows: find its tensors, move them, count its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def tensors(batch: Any) -> Iterator[Tensor]:
    """The tensors in nested mappings, lists and tuples, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors(value)


def convert(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with `change` applied to every tensor; what is neither container nor tensor stays."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: convert(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(convert(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(convert(value, change) for value in batch)
    return batch


def mover(device: torch.device, *, double: bool) -> Callable[[Any], Any]:
    """A function that takes a batch to `device` and, if `double`, its floating tensors to float64."""
    if device.type == "cpu" and not double:
        return _same

    def change(tensor: Tensor) -> Tensor:
        dtype = torch.float64 if double and tensor.is_floating_point() else tensor.dtype
        return tensor.to(device=device, dtype=dtype, non_blocking=True)

    return lambda batch: convert(batch, change)


def check_rows(batch: Any, rows: int) -> None:
    """Refuse a batch whose tensors all have another first dimension than `rows`; without tensors, nothing is known."""
    sizes = []
    for tensor in tensors(batch):
        if tensor.ndim:
            if tensor.shape[0] == rows:
                return
            sizes.append(tensor.shape[0])
    if sizes:
        raise ValueError(
            f"a batch of {rows} samples was asked for, and its tensors have {sorted(set(sizes))} rows: "
            "the data must return one row a sample id"
        )


def _same(batch: Any) -> Any:
    return batch
