"""Gaussian linear regression without label noise: a task whose gradient noise scale is d + 1 samples everywhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orchestrator.tasks.options import Count, Positive
from orchestrator.tasks.quadratic import GaussianStream
from orchestrator.training.task import Sum, Task, TaskConfig


class RegressionConfig(TaskConfig):
    """Options of the regression task."""

    dim: Count = 31
    """Inputs d; the noise scale is d + 1 samples."""
    signal: Positive = 1.0
    """|w*|^2, so that the initial loss is half of it."""


class Regression(Task):
    """Find w* from y = w*.x with x ~ N(0, I_d), starting at theta = 0. Loss of a sample: 1/2 (x.(theta - w*))^2.

    With delta = theta - w*, the mean gradient is delta and its covariance over samples |delta|^2 I + delta delta^T, so
    |G|^2 = |delta|^2, tr(Sigma) = (d + 1) |delta|^2, and their ratio, the simple noise scale (McCandlish et al. 2018,
    https://arxiv.org/abs/1812.06162, equation 2.9), is d + 1 samples at every theta. A batch is x, float32 ``[n, d]``,
    drawn anew for every stream position. Evaluation is the expected loss 1/2 |delta|^2, to float32's rounding.
    """

    Config = RegressionConfig
    config: RegressionConfig

    def model(self) -> nn.Module:
        """Takes x ``[n, d]``, gives the residuals x.(theta - w*) ``[n]``."""
        return _Linear(self.config.dim, self.config.signal)

    def train_data(self) -> GaussianStream:
        """Endless in truth; an epoch is nominally 262,144 samples."""
        return GaussianStream(self.config.dim)

    def val_data(self) -> ScaledBasis:
        """The d samples whose mean loss is the expected loss."""
        return ScaledBasis(self.config.dim)

    def loss(self, model: nn.Module, batch: Any) -> Sum:
        """Half the squared residuals, summed; the weight is the number of samples."""
        return 0.5 * model(batch).square().sum(), len(batch)


class _Linear(nn.Module):
    target: Tensor

    def __init__(self, dim: int, signal: float) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(dim))
        # x is rotationally symmetric, so only the length of w* matters.
        self.register_buffer("target", torch.full((dim,), math.sqrt(signal / dim)))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.theta - self.target)


class ScaledBasis:
    """A `Fetchable` of d samples sqrt(d) e_i: the mean of (x.delta)^2 over them is |delta|^2 exactly."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def __len__(self) -> int:
        return self.dim

    def fetch(self, indices: np.ndarray[Any, Any], draws: Any) -> Tensor:
        """float32 ``[n, d]``."""
        rows = torch.zeros(len(indices), self.dim)
        rows[torch.arange(len(indices)), torch.from_numpy(np.ascontiguousarray(indices))] = math.sqrt(self.dim)
        return rows


def exact_expected_loss(*, lr: float, global_batch: int, updates: int, dim: int = 31, signal: float = 1.0) -> float:
    """E[loss] after `updates` steps of plain SGD at a constant learning rate.

    As E|g|^2 = |delta|^2 (1 + (d + 1)/B), each update multiplies E|delta|^2 by 1 - 2 lr + lr^2 (1 + (d + 1)/B). The
    best rate is 1 / (1 + (d + 1)/B).

    Args:
        lr: above 0. Expected losses grow where the factor exceeds 1.
        global_batch: B >= 1, samples.
        updates: k >= 0.

    Raises:
        ValueError: if an argument is out of its range.
    """
    if not lr > 0.0 or global_batch < 1 or updates < 0:
        raise ValueError(
            f"lr = {lr!r}, global_batch = {global_batch!r}, updates = {updates!r}: must be above 0, at least 1 and 0"
        )
    factor = 1.0 - 2.0 * lr + lr**2 * (1.0 + (dim + 1) / global_batch)
    return 0.5 * signal * factor**updates
