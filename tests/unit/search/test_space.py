"""A space goes to Optuna and back with both ends and its scale."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from orchestrator.config.space import Choices, DurationRange, FloatRange, IntRange, Parameter, PowerRange
from orchestrator.search.space import decode, from_optuna, grid, to_distribution, to_optuna

FINITE: list[Parameter] = [
    Choices(options=(16, 32, 64)),
    Choices(options=("none", "sqrt", None)),
    Choices(options=(True, False)),
    Choices(options=([0.9, 0.999], [0.9, 0.95])),
    FloatRange(low=0.1, high=0.7, step=0.1),
    IntRange(low=32, high=128, step=32),
    PowerRange(low=16, high=4096),
    PowerRange(low=1, high=81, base=3),
    DurationRange(low=0, high=50, unit="updates"),
]


@pytest.mark.parametrize("parameter", FINITE, ids=str)
def test_every_value_survives_the_round_trip(parameter: Parameter) -> None:
    distribution = to_distribution(parameter)
    for value in parameter.values() or ():
        theirs = to_optuna(parameter, value)
        assert distribution._contains(distribution.to_internal_repr(theirs))
        assert from_optuna(parameter, theirs) == value


def test_ends_and_log_scale_are_kept() -> None:
    assert to_distribution(FloatRange(low=0.01, high=1.0, log=True)) == FloatDistribution(0.01, 1.0, log=True)
    assert to_distribution(IntRange(low=8, high=512, log=True)) == IntDistribution(8, 512, log=True)
    assert to_distribution(PowerRange(low=16, high=256)) == IntDistribution(4, 8)
    assert to_distribution(DurationRange(low=0.0, high=0.1, unit="share")) == FloatDistribution(0.0, 0.1)
    assert to_distribution(Choices(options=(16, 32))) == CategoricalDistribution((16, 32))


@given(st.integers(0, 9), st.integers(1, 3))
def test_the_largest_and_the_smallest_power_are_sampled(first: int, span: int) -> None:
    space: dict[str, Parameter] = {"batch.global": PowerRange(low=2**first, high=2 ** (first + span))}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=first))
    asked = [study.ask({key: to_distribution(p) for key, p in space.items()}) for _ in range(60)]
    seen = {decode(space, trial.params)["batch.global"] for trial in asked}
    assert seen == set(space["batch.global"].values() or ())


def test_durations_come_back_with_their_unit() -> None:
    share = DurationRange(low=0.0, high=0.1, unit="share")
    assert from_optuna(share, 0.05) == "5%"
    assert from_optuna(DurationRange(low=0, high=50, unit="updates"), 50) == "50 updates"


def test_the_grid_lists_every_cell() -> None:
    space: dict[str, Parameter] = {"a": Choices(options=(1, 2)), "b": IntRange(low=1, high=3)}
    cells: dict[str, list[Any]] = grid(space)
    assert cells == {"a": [1, 2], "b": [1, 2, 3]}
