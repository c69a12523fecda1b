"""What the sweep optimises, and which way is better: read from the resolved spec and the task's metric modes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.report.history import SweepHistory, TrialHistory

Mode = Literal["min", "max"]
Values = tuple[float, ...]
_COSTS = {
    "samples_to_target": ("samples to target",),
    "time_to_target": ("seconds to target",),
    "updates_and_samples": ("updates to target", "samples to target"),
}


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One entry of `names` and `modes` for each value of a trial; `metric` is what evaluations show."""

    kind: str
    metric: str
    metric_mode: Mode
    names: tuple[str, ...]
    modes: tuple[Mode, ...]
    target: float | None

    @classmethod
    def of(cls, history: SweepHistory) -> Objective:
        """The objective of a started sweep.

        The metric's direction is the task's (``facts.metric_modes``, named without ``val/``); costs until the target
        are always minimised.
        """
        return cls.make(history.spec["objective"], history.started["facts"]["metric_modes"])

    @classmethod
    def make(cls, raw: Mapping[str, Any], metric_modes: Mapping[str, Mode]) -> Objective:
        """The objective of a spec's ``objective`` section for a task with `metric_modes`."""
        mode = metric_modes[raw["metric"].removeprefix("val/")]
        costs = _COSTS.get(raw["kind"])
        lower: Mode = "min"
        return cls(
            kind=raw["kind"],
            metric=raw["metric"],
            metric_mode=mode,
            names=costs or (raw["metric"],),
            modes=(lower,) * len(costs) if costs else (mode,),
            target=raw["target"],
        )

    def describe(self) -> str:
        """One phrase for people, such as ``samples to target (val/loss <= 0.5), lower is better``."""
        names = " and ".join(self.names)
        if self.kind in _COSTS:
            names += f" ({self.metric} {'<=' if self.metric_mode == 'min' else '>='} {self.target:g})"
        return f"{names}, {'lower' if self.modes[0] == 'min' else 'higher'} is better"

    def values_of(self, value: Any) -> Values | None:
        """A trial's value as a tuple of finite numbers; None if there is none or any of it is not finite."""
        if value is None:
            return None
        values = tuple(float(v) for v in value) if isinstance(value, Sequence) else (float(value),)
        return values if len(values) == len(self.names) and all(map(math.isfinite, values)) else None

    def sort_key(self, values: Values) -> Values:
        """Smaller is better. Two values count in their order, which within one batch size agree anyway."""
        return tuple(v if mode == "min" else -v for v, mode in zip(values, self.modes, strict=True))

    def ranked(self, trials: Sequence[TrialHistory]) -> list[TrialHistory]:
        """The finished trials with a finite value, best first; equals stay in order of appearance."""
        keyed = [(self.sort_key(v), t) for t in trials if t.finished and (v := self.values_of(t.value)) is not None]
        return [trial for _, trial in sorted(keyed, key=lambda pair: pair[0])]

    def pareto_front(self, trials: Sequence[TrialHistory]) -> list[TrialHistory]:
        """The ranked trials that no other trial beats in one value without losing in another."""
        front: list[TrialHistory] = []
        best_second = math.inf
        for trial in self.ranked(trials):
            key = self.sort_key(self.values_of(trial.value) or ())
            if len(key) == 1:
                return [trial]
            if key[1] < best_second:
                front.append(trial)
                best_second = key[1]
        return front
