"""How busy a GPU is while something runs, through NVML: the share of time in which any kernel was at work on it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch

POLL_S = 0.05

Read = Callable[[], float]


class Utilisation:
    """Samples while this context lasts. `mean` is in [0, 1], and None where there is no GPU or it cannot be asked.

    NVML also counts a kernel that keeps one of many multiprocessors busy: a low value is a finding, a high one is none.
    """

    def __init__(self, device: torch.device, read: Read | None = None) -> None:
        self._read = read or reader_of(device)
        self._samples: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="utilisation", daemon=True)

    @property
    def mean(self) -> float | None:
        """Of the samples so far."""
        return sum(self._samples) / len(self._samples) if self._samples else None

    def __enter__(self) -> Self:
        if self._read is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._read is not None:
            self._thread.join()

    def _sample(self) -> None:
        assert self._read is not None
        with contextlib.suppress(Exception):  # a driver that stops answering must not stop what is measured
            while not self._over.wait(POLL_S):
                self._samples.append(self._read())


def reader_of(device: torch.device) -> Read | None:
    """What reads the utilisation of `device` now; None where it is no GPU, or NVML cannot be asked about it."""
    if device.type != "cuda":
        return None
    try:
        torch.cuda.utilization(device)
    except Exception:  # noqa: BLE001  no pynvml, no NVML, no permission: whatever it is, nothing is known
        return None
    return lambda: torch.cuda.utilization(device) / 100.0
