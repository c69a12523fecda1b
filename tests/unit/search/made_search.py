"""A search driven as Tune drives it, over a real Optuna journal, with trials whose results are made up on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.config.load import spec_from_dict
from orchestrator.config.resolve import resolve_trial
from orchestrator.config.spec import SweepSpec
from orchestrator.config.trial import TrialSpec
from orchestrator.search.objective import Objective
from orchestrator.search.searcher import StudySearcher, open_study

MODES: dict[str, Any] = {"loss": "min", "accuracy": "max"}
SPACE: dict[str, Any] = {"batch.global": [16, 32, 64], "lr.base": {"low": 0.01, "high": 1.0, "log": True}}


class Search:
    """A searcher, its study, and the events of reused suggestions."""

    def __init__(self, path: Path, *, space: dict[str, Any], kind: str, metric: str, **options: Any) -> None:
        target = None if kind == "best_metric" else 0.5
        objective: dict[str, Any] = {"kind": kind, "metric": metric, "target": target}
        self.spec: SweepSpec = spec_from_dict({"task": {"name": "digits"}, "objective": objective, "space": space})
        trial = resolve_trial(self.spec, {}, metric_modes=MODES)
        mode = MODES[metric.removeprefix("val/")]
        self.objective = Objective(kind=self.spec.objective.kind, metric=metric, mode=mode, target=trial.target)
        self.reused: list[dict[str, Any]] = []
        self.study = open_study(path, "digits", self.objective)
        given = {"sampler": "tpe", "seed": 0, "startup_trials": 3, "trials": 8, "at_once": 1, "resolve": self.resolve}
        self.searcher = StudySearcher(
            study=self.study,
            space=self.spec.space,
            objective=self.objective,
            on_reuse=self.reused.append,
            **{**given, **options},
        )

    def resolve(self, params: Any, seed: int | None = None) -> TrialSpec:
        return resolve_trial(self.spec, params, seed=seed, metric_modes=MODES)

    def ask(self, tune_id: str) -> dict[str, Any]:
        config = self.searcher.suggest(tune_id)
        assert isinstance(config, dict), config
        return config

    def run(self, result: Callable[[dict[str, Any]], dict[str, Any]]) -> list[dict[str, Any]]:
        """Every suggestion until the search is over, each ended at once with its result."""
        configs: list[dict[str, Any]] = []
        while (config := self.searcher.suggest(f"tune{len(configs)}")) != "FINISHED":
            assert isinstance(config, dict), config
            configs.append(config)
            self.searcher.on_trial_complete(f"tune{len(configs) - 1}", result(config))
        return configs

    @property
    def states(self) -> list[str]:
        return [trial.state.name for trial in self.study.trials]


def completed(value: Any, metric: float = 0.5) -> dict[str, Any]:
    """The last result of a trial that ended by itself."""
    return {"samples_seen": 4000, "metric": metric, "done": True, "status": "completed", "value": value, "over": False}


def evaluated(samples: int, metric: float | None) -> dict[str, Any]:
    """The last result of a trial that the scheduler stopped."""
    return {"samples_seen": samples, "metric": metric, "done": True}
