"""Activation checkpointing changes memory and time, and nothing of what is learned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from memory_tasks import Residual
from torch import Tensor, nn

from orchestrator.training.activation_checkpointing import checkpoint_activations


def trained(model: nn.Module, inputs: Tensor, classes: tuple[str, ...]) -> dict[str, Tensor]:
    names = dict(model.named_parameters()).keys()
    if classes:
        checkpoint_activations(model, classes)
    assert dict(model.named_parameters()).keys() == names
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for update in range(3):
        torch.manual_seed(update)
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def net(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Residual(3, 8, 1), Residual(8, 8, 2), nn.Dropout(0.3), nn.BatchNorm2d(8, **options))


@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"track_running_stats": False}])
@pytest.mark.parametrize("classes", [("Residual",), ("Residual", "Dropout", "BatchNorm2d"), ("Sequential",)])
def test_the_same_bits_are_learned(classes: tuple[str, ...], options: dict[str, Any]) -> None:
    """Batch norm counts a batch once though it runs twice, and dropout draws the same numbers again."""
    inputs = 1.0 + torch.randn(6, 3, 8, 8)
    plain, saved = (trained(net(**options), inputs, chosen) for chosen in ((), classes))
    assert plain.keys() == saved.keys()
    for name, value in plain.items():
        assert torch.equal(value, saved[name]), name


def test_the_outermost_module_is_checkpointed_and_named() -> None:
    assert checkpoint_activations(net(), ["Residual"]) == ("0", "1")
    assert checkpoint_activations(net(), ["Residual", "Conv2d"]) == ("0", "1")
    assert checkpoint_activations(net(), ["Sequential", "Conv2d"]) == ("",)


def test_a_class_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no module of class Residul; did you mean Residual"):
        checkpoint_activations(net(), ["Residul"])
