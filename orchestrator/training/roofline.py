"""What a device reaches in arithmetic and in moving bytes: large matrix products, and copies beyond its caches."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from orchestrator.theory.limits import Roofline

_SIZE = {"cpu": 1024, "cuda": 8192}
_COPY_BYTES = {"cpu": 2**28, "cuda": 2**30}
_TRIES = 5
_DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}


def measure_roofline(device: torch.device, precision: str = "fp32") -> Roofline:
    """Time `_TRIES` products of square matrices and as many copies; the fastest of each counts.

    Args:
        device: where; on a CPU with the threads that this process uses.
        precision: of the products: ``fp32``, ``fp64``, ``bf16`` or ``fp16``.
    """
    n = _SIZE[device.type]
    left = torch.ones(n, n, device=device, dtype=_DTYPES[precision])
    out = torch.empty_like(left)
    product_s = _fastest(lambda: torch.mm(left, left, out=out), device)
    source = torch.zeros(_COPY_BYTES[device.type] // 4, device=device)
    target = torch.empty_like(source)
    copy_s = _fastest(lambda: target.copy_(source), device)
    return Roofline(flops_per_s=2.0 * n**3 / product_s, bytes_per_s=2.0 * _COPY_BYTES[device.type] / copy_s)


def _fastest(work: Callable[[], object], device: torch.device) -> float:
    best = float("inf")
    for _ in range(_TRIES + 1):  # the first one is never the fastest
        _wait(device)
        begun = time.perf_counter()
        work()
        _wait(device)
        best = min(best, time.perf_counter() - begun)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
