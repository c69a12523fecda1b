"""The port between a user's model and the orchestrator: a task gives a model, data, and a summed loss with weight."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

Sum = tuple[Tensor, Tensor | float | int]


class TaskConfig(BaseModel):
    """Base of a task's typed options: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@runtime_checkable
class Fetchable(Protocol):
    """Data that gives a whole batch at once: the fast path for in-memory and Arrow data.

    `fetch` gets sample ids, int64 of shape ``[n]``, and `draws`, the counter-based randomness of these samples
    (see `training.draws`), or None in evaluation. It returns whatever `Task.loss` takes as a batch.
    """

    def __len__(self) -> int: ...

    def fetch(self, indices: np.ndarray[Any, Any], draws: Any) -> Any: ...


class Task(ABC):
    """What a user brings. Subclass it, or give a class with the same members.

    A sample is one item of `train_data`. Batches are what `fetch` returns or, for a plain map-style
    ``torch.utils.data.Dataset``, its items collated by torch's default.

    Attributes:
        Config: the pydantic model of the task's options.
        metric_modes: every metric that `evaluate` returns, and whether less or more of it is better.
    """

    Config: ClassVar[type[BaseModel]] = TaskConfig
    metric_modes: ClassVar[Mapping[str, Literal["min", "max"]]] = {"loss": "min"}

    def __init__(self, config: Any = None) -> None:
        self.config = config if config is not None else self.Config()

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model. Called with torch seeded by the trial's seed."""

    @abstractmethod
    def train_data(self) -> Any:
        """The training samples: `Fetchable`, or a map-style ``Dataset``. Must not depend on the trial."""

    @abstractmethod
    def val_data(self) -> Any:
        """The samples of every evaluation, in the same two forms."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Sum:
        """The loss summed over the batch, a scalar tensor with gradient, and its weight (samples or unmasked tokens).

        It must be a sum, not a mean: twice the batch is twice the loss.
        """

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Sum]:
        """Metrics of one evaluation batch as (sum, weight), without gradient. By default the loss alone."""
        return {"loss": self.loss(model, batch)}

    def fingerprint(self) -> str:
        """16 hex digits that change when the data changes; by default over sizes and up to 64 spread samples."""
        digest = hashlib.sha256()
        for data in (self.train_data(), self.val_data()):
            n = len(data)
            digest.update(str(n).encode())
            ids = np.unique(np.linspace(0, n - 1, min(n, 64)).astype(np.int64))
            items = data.fetch(ids, None) if isinstance(data, Fetchable) else [data[int(i)] for i in ids]
            _digest(digest, items)
        return digest.hexdigest()[:16]


def _digest(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy() if value.dtype != torch.bfloat16 else value.float().numpy()
    if isinstance(value, np.ndarray):
        digest.update(str((value.shape, value.dtype)).encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value):
            digest.update(str(key).encode())
            _digest(digest, value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            _digest(digest, item)
    else:
        digest.update(repr(value).encode())
