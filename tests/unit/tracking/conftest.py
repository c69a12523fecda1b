"""Fixtures of the tracking tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tracking_samples import Sweep

from orchestrator.tracking.events import EventLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog(tmp_path / "run" / "events.jsonl") as opened:
        yield opened


@pytest.fixture
def sweep(log: EventLog) -> Sweep:
    return Sweep(log)
