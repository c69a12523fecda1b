"""The valley of one batch and the guess for the next: planted ones are found, and no order matters."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.theory.ladder_rate import Guess, KnownLr, guess_lr
from orchestrator.theory.ladder_valley import Tried, Valley, locate, valley

WIDE = Guess(log_lr=-1.0, sd=2.0)
BOUNDS = (-4.0, 3.0)
# ln(samples / least) at factors of the best learning rate, exact on the noisy quadratic of tests/data/quadratics.csv.
EXACT = {
    2: {0.25: 0.829, 0.5: 0.291, 0.8: 0.042, 0.9: 0.011, 1.1: 0.011, 1.25: 0.074, 1.4: 0.224},
    16: {0.25: 0.954, 0.5: 0.364, 0.8: 0.060, 0.9: 0.016, 1.1: 0.020, 1.25: 0.170},
    256: {0.25: 1.297, 0.5: 0.612, 0.8: 0.161, 0.9: 0.058, 1.0: 0.0, 1.05: 0.081},
}


def tried_of(points: dict[float, float], floor: float, sd: float = 0.02) -> list[Tried]:
    return [Tried(log_lr=floor + math.log(f), log_samples=7.0 + y, sd=sd) for f, y in points.items()]


@pytest.mark.parametrize(("batch", "cliff"), [(2, 1.6), (16, 1.4), (256, 1.1)])
def test_the_floor_of_the_quadratics_valley_is_found(batch: int, cliff: float) -> None:
    tried = [
        *tried_of(EXACT[batch], -0.7),
        Tried(log_lr=-0.7 + math.log(cliff), at_least=math.inf),
        Tried(log_lr=0.5, at_least=6.0, diverged=True),
    ]
    found = locate(tried, WIDE, BOUNDS)
    assert abs(found.mean + 0.7) < 0.15
    best, excess = found.best()
    assert abs(best + 0.7) < 0.1
    assert excess < 0.05


@settings(max_examples=30, deadline=None)
@given(
    floor=st.floats(-2.5, 1.0),
    sharpness=st.sampled_from([0.5, 1.0, 4.0]),
    slope=st.sampled_from([1.0, 1.5]),
    order=st.permutations(range(6)),
)
def test_a_planted_valley_is_found_whatever_the_order(floor, sharpness, slope, order) -> None:  # type: ignore[no-untyped-def]
    x = np.array([-1.0, -0.6, -0.3, 0.0, 0.15, 0.3])
    heights = valley(x, np.full(6, sharpness), np.full(6, slope))
    tried = [
        Tried(log_lr=floor + float(a), log_samples=5.0 + float(h), sd=0.03) for a, h in zip(x, heights, strict=True)
    ]
    found = locate([tried[i] for i in order], WIDE, BOUNDS)
    assert abs(found.mean - floor) < 0.1
    assert found.mean == pytest.approx(locate(tried, WIDE, BOUNDS).mean, abs=1e-6)


def test_a_run_that_diverged_or_came_to_rest_pushes_the_floor_down_and_a_slow_one_up() -> None:
    one = Tried(log_lr=0.0, log_samples=7.0)
    alone = locate([one], WIDE, BOUNDS).mean
    for other, up in (
        (Tried(log_lr=0.7, at_least=6.0, diverged=True), False),
        (Tried(log_lr=0.3, at_least=math.inf), False),
        (Tried(log_lr=-0.3, at_least=7.6), True),
    ):
        assert (locate([one, other], WIDE, BOUNDS).mean > alone) == up


def test_a_cliff_is_kept_away_from() -> None:
    """Of an uncertain floor with a cliff behind it the safe side is chosen."""
    floor = np.linspace(-0.3, 0.3, 13)
    ones = np.ones(13)
    sharp = Valley(floor=floor, sharpness=30 * ones, slope=ones, level=0 * ones, weight=ones / 13)
    round_ = Valley(floor=floor, sharpness=ones, slope=ones, level=0 * ones, weight=ones / 13)
    assert sharp.best()[0] < -0.2
    assert sharp.best()[0] < round_.best()[0] < 0.1
    assert round_.best(below=-0.25)[0] < -0.249


def test_more_runs_are_worth_something_where_little_is_known_and_nothing_where_all_is() -> None:
    few = locate(tried_of({1.0: 0.0}, 0.0), WIDE, BOUNDS).thinned()
    many = locate(tried_of(EXACT[2], 0.0, sd=0.005), WIDE, BOUNDS).thinned()
    places, sds = np.array([-0.4, 0.0, 0.4]), np.full(3, 0.05)
    assert max(few.gains(places, sds)) > 0.03
    assert max(many.gains(places, sds)) < 0.003
    assert min(few.gains(places, sds)) > -1e-9


@settings(max_examples=30, deadline=None)
@given(
    power=st.sampled_from([0.5, 1.0]),
    scale=st.floats(1.0, 1000.0),
    level=st.floats(-5.0, 1.0),
    at=st.sampled_from([1, 64]),
)
def test_a_planted_law_is_followed(power: float, scale: float, level: float, at: int) -> None:
    def law(batch: int) -> float:
        return level - power * math.log1p(scale / batch)

    known = [KnownLr(global_batch=b, log_lr=law(b), se_log=0.03) for b in (2, 4, 8, 16, 32)]
    found = guess_lr(known, at)
    assert abs(found.log_lr - law(at)) < 0.25
    assert abs(found.log_lr - law(at)) < 2 * found.sd


def test_a_guess_is_less_sure_further_away_and_a_noise_scale_helps() -> None:
    known = [KnownLr(global_batch=8, log_lr=0.0, se_log=0.05)]
    near, far = guess_lr(known, 16), guess_lr(known, 1024)
    assert 0.1 < near.sd < far.sd
    assert 0.0 < near.log_lr < math.log(2)
    assert guess_lr(known, 1024, noise_scale=1.0).log_lr < far.log_lr < guess_lr(known, 1024, noise_scale=1e4).log_lr
    with pytest.raises(ValueError, match="at least one batch"):
        guess_lr([], 8)
