"""Activation checkpointing by module class: its forward pass is run again in the backward pass instead of kept."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from orchestrator.config.names import nearest_names


def checkpoint_activations(model: nn.Module, classes: Iterable[str]) -> tuple[str, ...]:
    """Keep only the inputs of every module of these classes, outermost first, until its backward pass needs the rest.

    Names of parameters, and the update to the last bit on one thread, stay as they are: dropout draws the same numbers
    again, and batch norm counts a batch into its running statistics once.

    Args:
        classes: class names such as ``_Block``, without module path. A module inside of another that is checkpointed
            already is left alone.

    Returns:
        The names of the modules, of which there is at least one for each class.

    Raises:
        ValueError: for a class that no module has; names the nearest.

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174).
    """
    wanted = set(classes)
    there = {type(module).__name__ for module in model.modules()}
    for name in sorted(wanted - there):
        near = nearest_names(name, sorted(there))
        remedy = f"did you mean {near[0]}?" if near else f"its modules are {', '.join(sorted(there))}"
        raise ValueError(f"the model has no module of class {name}; {remedy}")
    found: list[str] = []
    for name, module in model.named_modules():
        if type(module).__name__ in wanted and not any(name.startswith(f"{outer}.") or not outer for outer in found):
            found.append(name)
            _recompute(module)
    return tuple(found)


def _recompute(module: nn.Module) -> None:
    forward = module.forward
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), _statistics_kept(norms)

    @functools.wraps(forward)
    def replayed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    module.forward = replayed


@contextmanager
def _statistics_kept(norms: list[_BatchNorm]) -> Iterator[None]:
    """Batch norm runs as before, without counting the batch again."""
    momenta = [norm.momentum for norm in norms]
    counts = [norm.num_batches_tracked for norm in norms]
    before = [count.clone() if isinstance(count, Tensor) else None for count in counts]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum, count, value in zip(norms, momenta, counts, before, strict=True):
            norm.momentum = momentum
            if value is not None and isinstance(count, Tensor):
                count.copy_(value)
