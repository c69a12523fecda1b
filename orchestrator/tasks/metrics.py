"""Metrics that several tasks share, as (sum, weight) in float64."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from orchestrator.training.task import Sum


def classification_sums(logits: Tensor, target: Tensor) -> dict[str, Sum]:
    """Cross entropy in nats and top-1 accuracy, summed over samples.

    Args:
        logits: ``[n, classes]``.
        target: int64 class indices, ``[n]``.
    """
    losses = F.cross_entropy(logits, target, reduction="none")
    correct = logits.argmax(dim=1) == target
    return {"loss": (losses.double().sum(), len(target)), "accuracy": (correct.double().sum(), len(target))}
