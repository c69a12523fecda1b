"""Handwritten digits: the 1,797 images of 8 x 8 pixels that come with scikit-learn, for a perceptron or a small CNN."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from orchestrator.tasks.arrays import TensorRows
from orchestrator.tasks.metrics import classification_sums
from orchestrator.tasks.mlp import mlp
from orchestrator.tasks.options import Count, Dropout
from orchestrator.training.task import Sum, Task, TaskConfig

SIDE = 8
CLASSES = 10
_SPLIT_SEED = 0
_VAL_EVERY = 5


class DigitsConfig(TaskConfig):
    """Options of the digits task."""

    model: Literal["mlp", "cnn"] = "mlp"
    """A multilayer perceptron, or 3 x 3 convolutions with 2 x 2 max-pooling after the first two."""
    hidden: Count = 64
    """Units of each hidden layer (mlp), or channels of each convolution (cnn)."""
    depth: Count = 1
    """Hidden layers (mlp), or convolutions (cnn)."""
    dropout: Dropout = 0.0
    """Dropout after each hidden layer. Above 0 a run depends on how its batch is split over workers."""


class Digits(Task):
    """Classify 8 x 8 images of digits: 1,437 to train on, 360 to evaluate on. Loss: cross entropy in nats.

    A batch is ``(pixels float32 [n, 64], label int64 [n])``. A perceptron of the default size reaches an accuracy above
    0.95 within 20,000 samples.
    """

    Config = DigitsConfig
    metric_modes: ClassVar[Mapping[str, Literal["min", "max"]]] = {"loss": "min", "accuracy": "max"}
    config: DigitsConfig

    def model(self) -> nn.Module:
        """Takes pixels ``[n, 64]``, gives logits ``[n, 10]``."""
        c = self.config
        if c.model == "mlp":
            return mlp(SIDE * SIDE, c.hidden, c.depth, CLASSES, c.dropout)
        return _cnn(c.hidden, c.depth, c.dropout)

    def train_data(self) -> TensorRows:
        """1,437 images."""
        return _digits()[0]

    def val_data(self) -> TensorRows:
        """360 images, the same for every trial and seed."""
        return _digits()[1]

    def loss(self, model: nn.Module, batch: Any) -> Sum:
        """Cross entropy summed over the batch; the weight is its number of images."""
        pixels, label = batch
        return F.cross_entropy(model(pixels), label, reduction="sum"), len(label)

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Sum]:
        """Loss and accuracy from one forward pass."""
        pixels, label = batch
        return classification_sums(model(pixels), label)


def _cnn(channels: int, depth: int, dropout: float) -> nn.Sequential:
    modules: list[nn.Module] = [nn.Unflatten(1, (1, SIDE, SIDE))]
    side = SIDE
    for i in range(depth):
        modules += [nn.Conv2d(1 if i == 0 else channels, channels, 3, padding=1), nn.ReLU()]
        if i < 2:
            modules.append(nn.MaxPool2d(2))
            side //= 2
        if dropout > 0:
            modules.append(nn.Dropout(dropout))
    return nn.Sequential(*modules, nn.Flatten(), nn.Linear(channels * side * side, CLASSES))


@lru_cache(maxsize=1)
def _digits() -> tuple[TensorRows, TensorRows]:
    """Training and validation data, loaded once a process: every trial in it shares them."""
    from sklearn.datasets import load_digits

    pixels, label = load_digits(return_X_y=True)
    val = _stratified_val(label)
    train = np.setdiff1d(np.arange(len(label)), val)
    share = pixels / 16.0
    standard = (share - share[train].mean()) / share[train].std()
    x, y = torch.from_numpy(standard.astype(np.float32)), torch.from_numpy(label.astype(np.int64))
    return _rows(x, y, train), _rows(x, y, val)


def _stratified_val(label: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Every fifth sample after a fixed shuffle and a sort by class: each class gives its share, to within one."""
    shuffled = np.random.default_rng(_SPLIT_SEED).permutation(len(label))
    by_class = shuffled[np.argsort(label[shuffled], kind="stable")]
    return np.sort(by_class[::_VAL_EVERY])


def _rows(x: Tensor, y: Tensor, rows: np.ndarray[Any, Any]) -> TensorRows:
    ids = torch.from_numpy(rows)
    return TensorRows(x[ids], y[ids])
