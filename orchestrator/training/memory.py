"""The most memory that a trial held, on its device or in its process, and what to do when there is no more of it."""

from __future__ import annotations

import contextlib
import gc
import re
import resource
import sys
from pathlib import Path

import torch

# What torch says where it has no class of its own: its CPU allocator, a failed cudaMalloc, cuBLAS and cuDNN.
_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
_RESET_PEAK = "5"  # to /proc/self/clear_refs, see proc(5)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less work at once might have gone through."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


def release(device: torch.device) -> None:
    """Give back what a failed try left behind: cycles that hold tensors, and the allocator's free blocks."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def reset_peak(device: torch.device) -> None:
    """Start measuring anew. Where the system has no such reset, a process's peak is that of its whole life."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)


def peak_bytes(device: torch.device) -> int:
    """Bytes allocated on a CUDA device, or resident in this process, at the most since `reset_peak`."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        if found:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
