"""Randomness that code takes from global generators: seeded by position, and put back after a trial.

Our own seeds are functions of the trial's seed and of samples seen, and need no checkpoint. What a task draws between
them, from Python's or numpy's generator for one, does: a checkpoint keeps each rank's generators.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_ODD = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, as in SplitMix64
_MASK = 2**64 - 1


def mix(*parts: int) -> int:
    """One 63-bit seed out of several integers: a polynomial in them, then SplitMix64's finalizer (Steele 2014)."""
    value = 0
    for part in parts:
        value = (value + part) * _ODD + _ODD & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return (value ^ value >> 31) >> 1


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed the generators that a forward pass on `device` draws from. Cheap: meant for every micro batch."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's CPU generator with a 64-bit seed."""
    random.seed(seed)
    np.random.seed(seed & (2**32 - 1))
    torch.default_generator.manual_seed(seed & (2**63 - 1))


def generators(device: torch.device) -> dict[str, Any]:
    """The states of Python's, numpy's and torch's generators, as tensors and plain numbers."""
    state: Any = np.random.get_state()
    name, keys, position, has_gauss, gauss = state
    return {
        "python": random.getstate(),
        "numpy": (str(name), torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(gauss)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_generators(state: dict[str, Any], device: torch.device) -> None:
    """Put the generators where `state` says. One of a GPU is left alone if the checkpoint was made without."""
    name, keys, position, has_gauss, gauss = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def restored_generators() -> Iterator[None]:
    """Put Python's, numpy's and torch's CPU generator back as they were."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Run a trial that leaves no trace: generators, threads, default dtype, determinism and grad mode come back."""
    threads, dtype, grad = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    with restored_generators():
        try:
            yield
        finally:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(grad)
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
            if cuda is not None:
                torch.cuda.set_rng_state(cuda, device)
