"""The noisy quadratic model: a task whose expected loss is known exactly for every batch, learning rate and time.

Source: Zhang et al. 2019, "Which Algorithmic Choices Matter at Which Batch Sizes? Insights From a Noisy Quadratic
Model", section 3 (https://arxiv.org/abs/1907.04164), with their spectrum h_i = 1/i and gradient noise covariance h_i.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orchestrator.tasks.options import Count, NotNegative
from orchestrator.training.draws import Draws
from orchestrator.training.task import Sum, Task, TaskConfig

NOMINAL_SAMPLES = 2**18
Array = np.ndarray[Any, Any]


class QuadraticConfig(TaskConfig):
    """Options of the quadratic task."""

    dim: Count = 256
    """Parameters; the condition number is as large."""
    noise: NotNegative = 1.0
    """Multiplier of the gradient noise's variance."""


class Quadratic(Task):
    """Minimise 1/2 sum_i h_i theta_i^2 from theta = 1, with h_i = 1/i and noisy gradients.

    A sample draws xi ~ N(0, I) and has the loss 1/2 sum_i h_i theta_i^2 + sum_i sqrt(noise h_i) xi_i theta_i, hence the
    gradient h_i theta_i + sqrt(noise h_i) xi_i: the variance of a mean over B samples is noise h_i / B. A batch is xi,
    float32 ``[n, dim]``. Every stream position draws anew, so no sample is ever seen twice. Evaluation is the expected
    loss itself, from one sample with xi = 0.
    """

    Config = QuadraticConfig
    config: QuadraticConfig

    def model(self) -> nn.Module:
        """Takes xi ``[n, dim]``, gives the losses ``[n]``."""
        return _Quadratic(self.config.dim, self.config.noise)

    def train_data(self) -> GaussianStream:
        """Endless in truth; an epoch is nominally 262,144 samples."""
        return GaussianStream(self.config.dim)

    def val_data(self) -> NoiseFree:
        """One sample without noise."""
        return NoiseFree(self.config.dim)

    def loss(self, model: nn.Module, batch: Any) -> Sum:
        """Losses summed over the batch; the weight is its number of samples."""
        return model(batch).sum(), len(batch)


class _Quadratic(nn.Module):
    curvature: Tensor
    noise_std: Tensor

    def __init__(self, dim: int, noise: float) -> None:
        super().__init__()
        h = curvatures(dim)
        self.theta = nn.Parameter(torch.ones(dim))
        self.register_buffer("curvature", torch.tensor(h, dtype=torch.float32))
        self.register_buffer("noise_std", torch.tensor(np.sqrt(noise * h), dtype=torch.float32))

    def forward(self, xi: Tensor) -> Tensor:
        expected = 0.5 * (self.curvature * self.theta.square()).sum()
        return expected + xi @ (self.noise_std * self.theta)


class GaussianStream:
    """A `Fetchable` of fresh standard normal rows, float32 ``[n, dim]``, keyed by (seed, position in the stream).

    Without draws (a fingerprint, a preflight) the sample's index stands in for its position, under seed 0.
    """

    def __init__(self, dim: int, samples: int = NOMINAL_SAMPLES) -> None:
        self.dim, self.samples = dim, samples

    def __len__(self) -> int:
        return self.samples

    def fetch(self, indices: Array, draws: Draws | None) -> Tensor:
        """Rows for the stream positions of `draws`."""
        source = draws if draws is not None else Draws(0, indices)
        return torch.from_numpy(np.ascontiguousarray(source.normal32(self.dim)))


class NoiseFree:
    """A `Fetchable` of one sample, xi = 0, whose loss is the expected loss."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def __len__(self) -> int:
        return 1

    def fetch(self, indices: Array, draws: Any) -> Tensor:
        """Zeros ``[n, dim]``."""
        return torch.zeros(len(indices), self.dim)


def curvatures(dim: int) -> Array:
    """h_i = 1/i for i = 1..dim, float64."""
    return 1.0 / np.arange(1, dim + 1, dtype=np.float64)


def exact_expected_loss(*, lr: float, global_batch: int, updates: int, dim: int = 256, noise: float = 1.0) -> float:
    """E[loss] after `updates` steps of plain SGD at a constant learning rate from theta = 1.

    Each coordinate follows E theta_i(k)^2 = r^k (1 - v) + v with r = (1 - lr h_i)^2 and the stationary value
    v = lr^2 (noise h_i / B) / (1 - r) (Zhang et al. 2019, section 3).

    Args:
        lr: in (0, 2), beyond which the first coordinate diverges.
        global_batch: B >= 1, samples.
        updates: k >= 0.

    Raises:
        ValueError: if an argument is out of its range.
    """
    if not 0.0 < lr < 2.0:
        raise ValueError(f"lr = {lr!r}: must be above 0 and below 2, as the largest curvature is 1")
    if global_batch < 1 or updates < 0:
        raise ValueError(f"global_batch = {global_batch!r}, updates = {updates!r}: must be at least 1 and 0")
    h = curvatures(dim)
    r = (1.0 - lr * h) ** 2
    v = lr**2 * (noise * h / global_batch) / (1.0 - r)
    decay = r**updates
    return float(0.5 * np.sum(h * (decay * (1.0 - v) + v)))
