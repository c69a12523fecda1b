"""A task that reads from an address, and tells it in its errors, as libraries do."""

from __future__ import annotations

from typing import Any

from scripted import Scripted, ScriptedConfig
from torch import nn


class LeakyConfig(ScriptedConfig):
    """`source`: an address with credentials; one with "broken" in it cannot be read."""

    source: str = ""


class Leaky(Scripted):
    """Fails with its address where that cannot be read."""

    Config = LeakyConfig
    config: LeakyConfig

    def loss(self, model: nn.Module, batch: Any) -> Any:
        if "broken" in self.config.source:
            raise OSError(f"cannot read {self.config.source}")
        return super().loss(model, batch)
