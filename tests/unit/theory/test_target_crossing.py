"""The crossing of the expected curve: on the noisy quadratic, whose expectation is exact, and on curves at will."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.tasks.quadratic import curvatures, exact_expected_loss
from orchestrator.theory.critical_batch import fit
from orchestrator.theory.target_crossing import OVERSHOOT, Crossing, Curve, expected_crossing

H = curvatures(256)
TARGET = 0.1 * 0.5 * float(H.sum())
# Updates to the target at the best constant learning rate, exact: tests/data/quadratics.csv.
EXACT = {
    2: (496.715, 0.2373),
    8: (139.767, 0.7870),
    32: (57.215, 1.4889),
    64: (44.984, 1.6653),
    128: (38.689, 1.7724),
    256: (35.162, 1.8418),
    512: (33.074, 1.8851),
}


def quadratic(global_batch: int, curves: int, seed: int, *, stop: float = 1.7) -> tuple[Any, Any]:
    """SGD on the noisy quadratic to `stop` times the crossing, evaluated about every 3 % of it: samples, losses."""
    updates, lr = EXACT[global_batch]
    rng = np.random.default_rng(seed)
    theta = np.ones((curves, 256), dtype=np.float32)
    keep, kick = (1.0 - lr * H).astype(np.float32), (lr * np.sqrt(H / global_batch)).astype(np.float32)
    every = max(1, round(0.03 * updates))
    samples, losses = [], []
    for update in range(math.ceil(stop * updates) + 1):
        if update % every == 0:
            samples.append(float(update * global_batch))
            losses.append(0.5 * (theta.astype(np.float64) ** 2) @ H)
        theta = keep * theta + kick * rng.standard_normal(theta.shape, dtype=np.float32)
    return np.array(samples), np.stack(losses, axis=1)


def crossing_of(samples: Any, losses: Any, **options: Any) -> Crossing:
    return expected_crossing([Curve(samples=samples, values=loss) for loss in losses], TARGET, "min", **options)


def test_the_simulation_has_the_exact_expectation() -> None:
    lr = EXACT[8][1]
    samples, losses = quadratic(8, 400, 0)
    for at in (10, 30, 40):
        expected = exact_expected_loss(lr=lr, global_batch=8, updates=round(samples[at] / 8))
        assert losses[:, at].mean() == pytest.approx(expected, abs=4 * losses[:, at].std() / 20)


@pytest.mark.parametrize("global_batch", [2, 8, 64, 256])
@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_unbiased_within_two_percent_with_an_honest_error(global_batch: int, seeds: int) -> None:
    """200 repeats in benchmarks/coverage.py; here few enough that bounds must allow for chance."""
    repeats = 80 if seeds < 5 else 60
    exact = EXACT[global_batch][0] * global_batch
    samples, losses = quadratic(global_batch, repeats * seeds, global_batch + seeds, stop=2.2)
    found = [crossing_of(samples, group) for group in losses.reshape(repeats, seeds, -1)]
    assert {f.verdict for f in found} == {"crossed"}
    logs = np.log([f.samples / exact for f in found])
    chance = float(logs.std()) / math.sqrt(repeats)
    assert abs(np.mean(np.exp(logs)) - 1) < 0.02 + 2 * chance
    stated = math.sqrt(np.mean([f.se_log**2 for f in found]))
    assert 0.8 < stated / logs.std() < (1.35 if seeds > 1 else 2.5)
    assert np.mean([f.low <= exact <= f.high for f in found]) > 0.83


def test_first_crossings_come_too_early() -> None:
    samples, losses = quadratic(2, 200, 1)
    exact = 2 * EXACT[2][0]
    first = samples[np.argmax(losses <= TARGET, axis=1)]
    assert first.mean() < 0.87 * exact
    assert crossing_of(samples, losses).samples == pytest.approx(exact, rel=0.02)


def test_a_whole_study_finds_the_critical_batch_of_the_quadratic() -> None:
    """28.9 is the fit of the exact answers at these batches."""
    found = fit(run for b in (2, 8, 32, 128, 512) for run in crossing_of(*quadratic(b, 3, 11 + b)).observations(b))
    assert found.runs == 15
    assert found.critical_batch == pytest.approx(28.9, rel=0.15)
    assert found.low < 28.9 < found.high


@pytest.mark.parametrize("cadence", [0.01, 0.03, 0.07])
def test_cadence_and_its_irregularity_do_not_quantise(cadence: float) -> None:
    rng = np.random.default_rng(0)
    curves = []
    for _ in range(4):
        times = np.cumsum(rng.uniform(0.3, 1.7, size=round(2 / cadence)) * cadence * 1000)
        curves.append(Curve(samples=times, values=3.0 * np.exp(-times / 400) + 0.5))
    target = 3.0 * math.exp(-2.5) + 0.5
    found = expected_crossing(curves, target, "min")
    assert found.samples == pytest.approx(1000, rel=2e-3)
    assert found.se_log < 5e-3


decay = st.tuples(st.floats(50, 1e6), st.floats(0.1, 100), st.floats(0.05, 0.7))


@given(decay, st.integers(0, 1000), st.integers(1, 4))
def test_modes_and_units_are_alike(parts: tuple[float, float, float], seed: int, seeds: int) -> None:
    scale, height, share = parts
    rng = np.random.default_rng(seed)
    times = np.arange(0, 200) * scale / 40
    values = height * (np.exp(-times / scale) + 0.02 * rng.normal(size=(seeds, 200)))
    target = height * share
    less = expected_crossing([Curve(samples=times, values=v) for v in values], target, "min")
    more = expected_crossing([Curve(samples=times, values=5.0 - v) for v in values], 5.0 - target, "max")
    units = expected_crossing([Curve(samples=times * 32, values=v) for v in values], target, "min")
    assert less.verdict == more.verdict == units.verdict
    json.dumps(less.to_dict(), allow_nan=False)
    if less.samples is not None:
        assert less.samples == pytest.approx(more.samples, rel=1e-6)
        assert less.slope == pytest.approx(-more.slope, rel=1e-6)
        assert units.samples == pytest.approx(32 * less.samples, rel=1e-6)
        assert units.se_log == pytest.approx(less.se_log, rel=1e-5)


def test_accuracy_that_rises_by_steps() -> None:
    rng = np.random.default_rng(1)
    times = np.arange(100, 6000, 100.0)
    truth = 0.95 - 0.6 * np.exp(-times / 900)
    curves = [Curve(samples=times, values=rng.binomial(1000, truth) / 1000) for _ in range(3)]
    found = expected_crossing(curves, 0.9, "max")
    assert found.slope > 0
    assert found.low < 900 * math.log(12) < found.high


def test_more_seeds_tell_more() -> None:
    samples, losses = quadratic(8, 40, 3)
    few, many = crossing_of(samples, losses[:4]), crossing_of(samples, losses)
    assert many.se_log < few.se_log
    assert (few.dof, many.dof, many.seeds) == (3, 39, 40)
    assert many.window[0] == pytest.approx(many.samples / OVERSHOOT)
    assert many.window[1] == pytest.approx(many.samples * OVERSHOOT)


def test_short_of_overshoot_the_window_shrinks_and_then_it_is_refused() -> None:
    samples, losses = quadratic(8, 5, 3)
    whole = crossing_of(samples, losses)
    near = samples <= 1.25 * whole.samples
    assert crossing_of(samples[near], losses[:, near]).window[1] < 1.3 * whole.samples
    nearer = samples <= 1.1 * whole.samples
    short = crossing_of(samples[nearer], losses[:, nearer])
    assert short.verdict == "ended early"
    assert short.samples is None
    assert short.observations(8) == ()
    assert "Train to" in short.reason


def test_seeds_stopped_at_their_own_first_crossing_are_refused() -> None:
    samples, losses = quadratic(8, 5, 3)
    curves = []
    for loss in losses:
        end = int(np.argmax(loss <= TARGET)) + 1
        curves.append(Curve(samples=samples[:end], values=loss[:end]))
    found = expected_crossing(curves, TARGET, "min")
    assert found.verdict == "ended early"
    assert found.observations(8) == ()


def simple(values: Any, times: Any = None) -> list[Curve]:
    values = np.asarray(values, dtype=float)
    return [Curve(samples=np.arange(len(values)) * 10.0 if times is None else times, values=values)]


@pytest.mark.parametrize(
    ("curves", "verdict", "says"),
    [
        (simple([1.0] * 30), "not reached", "the mean of 1 seeds has not reached the target after 290 samples"),
        (simple([0.4, 0.3]), "met at start", ""),
        (simple([0.4, 0.3], np.array([5.0, 9.0])), "met at start", "after 5 samples. Evaluate earlier"),
        (simple([1.0, math.nan, 0.1]), "diverged", "1 of 1 seeds"),
        (simple([1.0, math.inf, 0.1]), "diverged", "1 of 1 seeds"),
        (simple([1.0, 0.8, 0.4, 0.2, 0.1]), "too few points", "Evaluate more often"),
    ],
)
def test_what_cannot_be_told_has_a_verdict(curves: list[Curve], verdict: str, says: str) -> None:
    found = expected_crossing(curves, 0.5, "min")
    assert found.verdict == verdict
    assert says in found.reason
    json.dumps(found.to_dict(), allow_nan=False)


def test_observations_carry_the_verdict_on() -> None:
    (never,) = expected_crossing(simple([1.0] * 30), 0.5, "min").observations(8)
    assert (never.censored, never.samples) == (True, 290.0)
    (start,) = expected_crossing(simple([0.4, 0.3]), 0.5, "min").observations(8)
    assert (start.censored, start.samples) == (False, 0.0)
    samples, losses = quadratic(8, 5, 0)
    found = crossing_of(samples, losses)
    logs = np.log([run.samples for run in found.observations(8)])
    assert logs.mean() == pytest.approx(math.log(found.samples), abs=1e-9)
    assert logs.std(ddof=1) / math.sqrt(5) == pytest.approx(found.se_log, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"curves": []}, "at least one"),
        ({"mode": "best"}, "mode = 'best'"),
        ({"target": math.nan}, "target = nan"),
        ({"overshoot": 1.0}, "overshoot = 1.0"),
        ({"confidence": 0.0}, "confidence = 0.0"),
    ],
)
def test_illegal_arguments_are_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"curves": simple([1.0, 0.1]), "target": 0.5, "mode": "min", **change}
    with pytest.raises(ValueError, match=message):
        expected_crossing(**arguments)


@pytest.mark.parametrize(
    ("samples", "values"), [([], []), ([1.0], [1.0, 2.0]), ([2.0, 1.0], [1.0, 1.0]), ([-1.0], [1.0])]
)
def test_illegal_curves_are_refused(samples: list[float], values: list[float]) -> None:
    with pytest.raises(ValueError, match="samples"):
        Curve(samples=np.array(samples), values=np.array(values))
