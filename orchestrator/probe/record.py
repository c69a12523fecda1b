"""The events of a probe's record, and the geometry that a question of them is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.theory.geometry import Geometry

DEVICE, PREDICTED, TIMED = "probe_device", "probe_predicted", "probe_timed"
TRIED, FOUND, DONE = "probe_tried", "probe_found", "probe_done"
_FACTORS = ("micro_batch", "accumulation", "world_size", "nodes")


def asked_of(geometry: Geometry) -> dict[str, int]:
    """A geometry as part of a question."""
    return {name: getattr(geometry, name) for name in _FACTORS}


def geometry_of(asked: Mapping[str, Any]) -> Geometry:
    """The geometry of a question."""
    return Geometry(**{name: asked[name] for name in _FACTORS})


def last_of(events: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    """The latest event of a kind."""
    return next((event for event in reversed(events) if event["event"] == kind), None)
