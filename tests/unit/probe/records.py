"""Records of probes with planted speeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from orchestrator.probe.record import TIMED, asked_of
from orchestrator.theory.geometry import Geometry

SHARES = {"data": 0.1, "forward": 0.3, "backward": 0.5, "communication": 0.05, "optimizer": 0.05}


def seconds(geometry: Geometry, *, pass_s: float = 0.096, sample_s: float = 0.001, sync_s: float = 0.05) -> float:
    """An update: passes, and a sum over workers where there are several."""
    return geometry.accumulation * (pass_s + sample_s * geometry.micro_batch) + sync_s * (geometry.world_size > 1)


def timed(
    geometries: Iterable[Geometry],
    took: Callable[[Geometry], float] = seconds,
    *,
    rounds: int = 3,
    noise: float = 0.0,
    seed: int = 0,
    variant: str = "",
) -> list[dict[str, Any]]:
    """What a record holds of them."""
    rng = np.random.default_rng(seed)
    found = []
    for at in range(rounds):
        for geometry in geometries:
            steps = took(geometry) * np.exp(noise * rng.standard_normal(5))
            event = {"event": TIMED, "asked": {"variant": variant, "round": at, **asked_of(geometry)}}
            found.append({**event, "error": "", "step_s": steps.tolist(), "shares": SHARES})
    return found
