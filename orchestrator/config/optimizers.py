"""What the config must know about optimizers without importing torch: which adapt, and their constants by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.theory.lr_rules import ADAM_DEFAULTS

_OTHER_ADAPTIVE = {"RMSprop", "Rprop", "Adagrad", "Adadelta", "Adafactor"}
_RMSPROP_DEFAULTS = {"alpha": 0.99, "eps": 1e-8}


def is_adaptive(name: str) -> bool:
    """Whether the ``torch.optim`` class divides by a running gradient size: Adam and its kin, RMSprop, Adagrad."""
    return "Adam" in name or name in _OTHER_ADAPTIVE


def spelled_out(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the constants that rule ``sde`` scales, as torch would default them.

    >>> spelled_out("RMSprop", {"eps": 1e-6})
    {'alpha': 0.99, 'eps': 1e-06}
    """
    if "Adam" in name:
        return {**ADAM_DEFAULTS, **options}
    return {**_RMSPROP_DEFAULTS, **options} if name == "RMSprop" else dict(options)
