"""A task that can be trained in small batches only, as where no device has the memory for more."""

from __future__ import annotations

from typing import Any

from torch import nn

from orchestrator.tasks.quadratic import Quadratic, QuadraticConfig


class RoomlessConfig(QuadraticConfig):
    """`most`: samples of one forward pass."""

    most: int = 16


class Roomless(Quadratic):
    """Fails where it is handed more."""

    Config = RoomlessConfig
    config: RoomlessConfig

    def loss(self, model: nn.Module, batch: Any) -> Any:
        if len(batch) > self.config.most:
            raise RuntimeError(f"no room for {len(batch)} samples")
        return super().loss(model, batch)
