"""The plain multilayer perceptron that the digits and table tasks share."""

from __future__ import annotations

from torch import nn


def mlp(inputs: int, hidden: int, layers: int, outputs: int, dropout: float = 0.0) -> nn.Sequential:
    """`layers` >= 1 hidden layers of `hidden` ReLU units, with dropout if it is above 0, and a linear output.

    Takes ``[n, inputs]``, gives ``[n, outputs]``. Parameters are initialised by torch's default.
    """
    return nn.Sequential(nn.Linear(inputs, hidden), *after_first_layer(hidden, layers, outputs, dropout))


def after_first_layer(hidden: int, layers: int, outputs: int, dropout: float) -> list[nn.Module]:
    """What follows the first hidden layer's pre-activations in `mlp`, for models with a first layer of their own."""
    modules: list[nn.Module] = _activation(dropout)
    for _ in range(layers - 1):
        modules += [nn.Linear(hidden, hidden), *_activation(dropout)]
    return [*modules, nn.Linear(hidden, outputs)]


def _activation(dropout: float) -> list[nn.Module]:
    # No dropout module at rate 0: its mere presence marks a run as depending on how the batch is split.
    return [nn.ReLU(), nn.Dropout(dropout)] if dropout > 0 else [nn.ReLU()]
