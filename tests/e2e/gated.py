"""A task whose updates take their time, and wait while a file is there: a test decides how far a sweep has come."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from scripted import Scripted, ScriptedConfig
from torch import nn

LONGEST_WAIT_S = 120.0


class GatedConfig(ScriptedConfig):
    """`gate`: updates wait while this file is there; `pause_s`: how long each takes at least."""

    gate: str = ""
    pause_s: float = 0.02


class Gated(Scripted):
    """Losses by script, at the pace of a test."""

    Config = GatedConfig
    config: GatedConfig

    def loss(self, model: nn.Module, batch: Any) -> Any:
        time.sleep(self.config.pause_s)
        deadline = time.monotonic() + LONGEST_WAIT_S
        while self.config.gate and Path(self.config.gate).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return super().loss(model, batch)
