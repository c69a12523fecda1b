"""A small residual network with batch norm, and tasks that the prediction of memory must take or refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from orchestrator.training.task import Task, TaskConfig

SIDE = 32


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = (
            nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 or inputs != outputs else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(hidden)) + self.shortcut(x))


class Images:
    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def fetch(self, indices: np.ndarray[Any, Any], draws: Any) -> tuple[Tensor, Tensor]:
        pixels = torch.stack([torch.full((3, SIDE, SIDE), float(i % 7)) for i in indices])
        return pixels, torch.from_numpy(indices % 10)


class SmallResNet(Task):
    """ResNet-style: a stem, three stages of residual blocks, and a linear head."""

    def model(self) -> nn.Module:
        stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 32, 1), Residual(32, 64, 2)]
        return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    def train_data(self) -> Images:
        return Images(1000)

    def val_data(self) -> Images:
        return Images(100)

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        pixels, label = batch
        return F.cross_entropy(model(pixels), label, reduction="sum"), len(label)


class WordsConfig(TaskConfig):
    masked: bool = False


class Words(Task):
    """Sequences of 1 to 50 words, padded to the longest of a batch."""

    Config = WordsConfig

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(100, 16), nn.Linear(16, 100))

    def train_data(self) -> Any:
        return _Sequences([1 + i % 50 for i in range(200)])

    def val_data(self) -> Any:
        return _Sequences([50, 3])

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        words = batch["words"]
        if self.config.masked:
            words = words[words > 0]  # as many as the values say
        total = F.cross_entropy(model(words).flatten(0, -2), words.flatten(), reduction="sum")
        return total, (words > 0).sum()


class _Sequences:
    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def fetch(self, indices: np.ndarray[Any, Any], draws: Any) -> dict[str, Any]:
        lengths = [self._lengths[int(i)] for i in indices]
        words = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
        for row, length in enumerate(lengths):
            words[row, :length] = 1 + torch.arange(length)
        return {"words": words, "source": "made"}
