"""A small device layer in place of CUDA's: what the product asks of a GPU, answered and noted without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

GIB = 2**30


class FakeCuda:
    """One GPU of so many bytes; `calls` are the names of what was asked of it, in order.

    Attributes:
        peak: bytes that were allocated at the most.
        share: of its memory that this process may allocate.
    """

    def __init__(self, total: int = 80 * GIB, free: int = 60 * GIB) -> None:
        self.total, self.free, self.peak, self.share = total, free, 0, 1.0
        self.busy = [40, 60]
        self.calls: list[str] = []

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Answer for ``torch.cuda`` from now on."""
        for name in (
            "mem_get_info",
            "get_device_properties",
            "get_device_name",
            "max_memory_allocated",
            "reset_peak_memory_stats",
            "set_per_process_memory_fraction",
            "empty_cache",
            "synchronize",
            "device_count",
            "is_available",
            "utilization",
        ):
            patch.setattr(torch.cuda, name, self._noted(name))

    def _noted(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.calls.append(name)
            return getattr(self, f"_{name}", lambda *_: None)(*args)

        return call

    def _mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return self.free, self.total

    def _get_device_properties(self, device: Any) -> Any:
        return SimpleNamespace(total_memory=self.total)

    def _get_device_name(self, device: Any = None) -> str:
        return "Fake GPU"

    def _max_memory_allocated(self, device: Any = None) -> int:
        return self.peak

    def _reset_peak_memory_stats(self, device: Any = None) -> None:
        self.peak = 0

    def _set_per_process_memory_fraction(self, share: float, device: Any = None) -> None:
        self.share = share

    def _device_count(self) -> int:
        return 1

    def _is_available(self) -> bool:
        return True

    def _utilization(self, device: Any = None) -> int:
        return self.busy[len(self.calls) % len(self.busy)]
