"""Optuna's samplers by name, each a function of (seed, trial number) and the study's history alone."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler, GPSampler, GridSampler, NSGAIISampler, RandomSampler, TPESampler

from orchestrator.config.space import Parameter
from orchestrator.search.space import grid


class _Grid(GridSampler):
    """Optuna's grid, told from outside ``Study.optimize``, where its call of ``Study.stop`` would raise."""

    def after_trial(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        state: optuna.trial.TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """The searcher counts the grid itself."""


def make_sampler(
    name: str, *, seed: int, number: int, startup_trials: int, space: Mapping[str, Parameter]
) -> BaseSampler:
    """The sampler that suggests trial `number`.

    A sampler with a random state of its own would draw its stream again after a restart; a new one for each trial,
    seeded by (seed, number), draws the same whatever came before. Only the grid keeps one seed: it fixes the order of
    its cells.

    Args:
        name: ``tpe``, ``gp``, ``random``, ``grid`` or ``nsga2``.
        seed: the sweep's seed.
        number: the trial's number in the study.
        startup_trials: trials drawn at random before the history is used.
        space: the space, for the grid.
    """
    own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        match name:
            case "tpe":
                return TPESampler(seed=own, n_startup_trials=startup_trials, multivariate=True)
            case "gp":
                return GPSampler(seed=own, n_startup_trials=startup_trials)
            case "random":
                return RandomSampler(seed=own)
            case "nsga2":
                return NSGAIISampler(seed=own, population_size=max(4, startup_trials))
            case "grid":
                return _Grid(grid(space), seed=seed)
    raise ValueError(f"unknown sampler {name!r}")


def untried(space: Mapping[str, Parameter], tried: Collection[str]) -> list[dict[str, Any]]:
    """The suggestions of a finite space, as Optuna values, whose `canonical` text is not among `tried`."""
    values = grid(space)
    every = (dict(zip(values, cell, strict=True)) for cell in itertools.product(*values.values()))
    return [cell for cell in every if canonical(cell) not in tried]


def canonical(params: Mapping[str, Any]) -> str:
    """A text that is equal for equal Optuna values; steps of a float may be a last digit apart."""
    rounded = {key: float(f"{value:.12g}") if isinstance(value, float) else value for key, value in params.items()}
    return json.dumps(rounded, sort_keys=True)


def cells(space: Mapping[str, Parameter]) -> int | None:
    """How many different suggestions a space has, or None if it is not finite."""
    sizes = [parameter.size for parameter in space.values()]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)
