"""Whether a model can fit a worker at all: every worker holds all of it, with gradients and optimizer state."""

from __future__ import annotations

from orchestrator.cluster.capacity import Node
from orchestrator.errors import ResourceError

# Copies of the parameters in optimizer state (fp32): torch.optim's documentation of each algorithm.
_STATE_COPIES = {"SGD": 0, "ASGD": 1, "Rprop": 2, "RMSprop": 1, "Adagrad": 1, "Adafactor": 0, "Muon": 1}
_ADAM_LIKE = 2


def least_bytes(parameter_bytes: int, optimizer: str) -> int:
    """The least memory of a training process: parameters, gradients and optimizer state; activations come on top."""
    return parameter_bytes * (2 + _STATE_COPIES.get(optimizer, _ADAM_LIKE))


def check_memory(
    parameter_bytes: int, optimizer: str, node: Node, *, workers: int, task: str, file: str | None = None
) -> None:
    """Refuse a model that cannot fit beside the other workers of its node.

    Args:
        parameter_bytes: size of the model's parameters.
        optimizer: name of the ``torch.optim`` class.
        node: where the workers run; its ``memory`` is what they share.
        workers: workers on that node.
        task: the task's name, for the message.
        file: the spec's file, for the message.

    Raises:
        ResourceError: names need and supply.
    """
    supply = node.resources.get("memory")
    need = least_bytes(parameter_bytes, optimizer)
    if supply is None or need * workers <= supply:
        return
    raise ResourceError(
        f"each of {workers} worker(s) on {node.name} holds the whole model with gradients and {optimizer} state, at "
        f"least {_gib(need)}, and they share {_gib(supply)}: models are replicated, not sharded",
        file=file,
        key="task.name",
        value=task,
        remedy="use a smaller model, fewer workers a node, or nodes with more memory",
    )


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
