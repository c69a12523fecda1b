"""What keeps runs of one spec from being equal under another split of the batch, as text for an outcome's notes."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

_RULE = "statistically equal: {what} on how the batch is split over workers and micro batches"


def split_notes(model: nn.Module) -> tuple[str, ...]:
    """A sentence for each kind of module in `model` whose training depends on the split; empty if none does."""
    notes = []
    if any(_drops(module) for module in model.modules()):
        notes.append(_RULE.format(what="dropout draws depend"))
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        notes.append(_RULE.format(what="batch norm statistics depend"))
    return tuple(notes)


def _drops(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    return isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
