"""The most memory that a trial held: on its device, or in its process."""

from __future__ import annotations

import contextlib
import re
import resource
import sys
from pathlib import Path

import torch

_RESET_PEAK = "5"  # to /proc/self/clear_refs, see proc(5)


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
