"""What a task tells about itself, as far as a spec can be checked against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.config.trial import Mode


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A task, seen from its spec.

    Args:
        train_samples: number of training samples.
        val_samples: number of validation samples.
        metric_modes: every metric of an evaluation, without ``val/``, and its direction.
        task_options: names of the task's options; None if it takes any.
        validate_task: given the task's options, raises ValueError (or pydantic's ValidationError) if they are wrong.
        validate_optimizer: given the optimizer's name and options, raises ValueError if no such optimizer can be built.
    """

    train_samples: int
    val_samples: int
    metric_modes: Mapping[str, Mode]
    task_options: tuple[str, ...] | None = None
    validate_task: Callable[[Mapping[str, Any]], object] | None = None
    validate_optimizer: Callable[[str, Mapping[str, Any]], object] | None = None
