"""What every method knows of its study: the spec, and what the task says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.config.spec import SweepSpec
from orchestrator.config.trial import Mode


@dataclass(frozen=True, kw_only=True)
class SpecAsStudy:
    """A spec seen as a study.

    Attributes:
        spec: as `methods.as_spec` gave it.
        metric_modes: of the task.
        train_samples: of the task.
    """

    spec: SweepSpec
    metric_modes: Mapping[str, Any]
    train_samples: int

    def check(self, file: str) -> None:
        """Refuse what is known to give no answer.

        Raises:
            ConfigError: names file, key, value, rule and remedy.
        """
        raise NotImplementedError

    @property
    def metric(self) -> str:
        """What is compared, and what a target is of."""
        return self.spec.objective.metric

    @property
    def mode(self) -> Mode:
        """``min`` if less of it is better."""
        found: Mode = self.metric_modes[self.metric.removeprefix("val/")]
        return found
