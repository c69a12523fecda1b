"""Each sampler by name: through ask and tell, and a function of seed, number and history alone."""

from __future__ import annotations

import warnings

import optuna
import pytest

from orchestrator.config.space import Choices, FloatRange, Parameter
from orchestrator.search.samplers import canonical, cells, make_sampler, untried
from orchestrator.search.space import to_distribution

SPACE: dict[str, Parameter] = {
    "batch.global": Choices(options=(16, 32, 64)),
    "lr.base": FloatRange(low=0.01, high=1.0, log=True),
}
FINITE: dict[str, Parameter] = {"batch.global": Choices(options=(16, 32)), "lr.rule": Choices(options=("none", None))}


def history(name: str, seed: int, trials: int, directions: tuple[str, ...] = ("minimize",)) -> list[dict[str, object]]:
    """What a study suggests when each trial's sampler is made anew, as after a restart."""
    space = FINITE if name == "grid" else SPACE
    study = optuna.create_study(directions=list(directions))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        for number in range(trials):
            study.sampler = make_sampler(name, seed=seed, number=number, startup_trials=3, space=space)
            trial = study.ask({key: to_distribution(parameter) for key, parameter in space.items()})
            study.tell(trial, [float(number % 3)] * len(directions))
    return [trial.params for trial in study.trials]


@pytest.mark.parametrize("name", ["tpe", "gp", "random", "nsga2"])
def test_the_same_seed_and_history_give_the_same_suggestions(name: str) -> None:
    suggested = history(name, 1, 7)
    assert suggested == history(name, 1, 7)
    assert suggested != history(name, 2, 7)
    assert len({canonical(params) for params in suggested}) > 4


@pytest.mark.parametrize("name", ["tpe", "gp", "random", "nsga2"])
def test_two_objectives_at_once(name: str) -> None:
    assert len(history(name, 0, 6, ("minimize", "minimize"))) == 6


def test_a_grid_made_anew_for_each_trial_visits_every_cell_once() -> None:
    suggested = history("grid", 5, 4)
    assert len({canonical(params) for params in suggested}) == cells(FINITE) == 4
    assert suggested != history("grid", 6, 4)


def test_untried_is_what_a_finite_space_still_holds() -> None:
    tried = {canonical(params) for params in history("grid", 0, 3)}
    (left,) = untried(FINITE, tried)
    assert canonical(left) not in tried
    assert untried(FINITE, tried | {canonical(left)}) == []


def test_an_endless_space_has_no_cells() -> None:
    assert cells(SPACE) is None


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown sampler 'cmaes'"):
        make_sampler("cmaes", seed=0, number=0, startup_trials=1, space=SPACE)
