"""What keeps runs of one spec from being equal under another split of the batch, as text for an outcome's notes."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

_RULE = "statistically equal: {what} on how the batch is split over workers and micro batches"


def split_notes(model: nn.Module) -> tuple[str, ...]:
    """A sentence for each kind of module in `model` whose training depends on the split; empty if none does."""
    notes = []
    if any(_drops(module) for module in model.modules()):
        notes.append(_RULE.format(what="random draws depend"))
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        notes.append(_RULE.format(what="batch norm statistics depend"))
    if any(isinstance(module, _InstanceNorm) and module.track_running_stats for module in model.modules()):
        notes.append(_RULE.format(what="instance norm's running statistics depend"))
    return tuple(notes)


def _drops(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d):
        return True
    return isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
