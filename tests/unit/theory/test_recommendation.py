"""What to run: fronts by hand, the knee at the critical batch, intervals, and what cannot be judged."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.critical_batch import Estimate, fit
from orchestrator.theory.doubling import should_double
from orchestrator.theory.geometry import Geometry
from orchestrator.theory.observation import Observation
from orchestrator.theory.recommendation import NothingToRecommend, devices_fed, quotient, recommend
from orchestrator.theory.step_time import Layout, step_seconds
from orchestrator.theory.throughput import StepTimeModel, Timing, fit_step_time


def exact(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value)


def regression_samples(batch: int) -> float:
    """Gaussian linear regression in 31 dimensions to 1e-3: its closed form (tests/data/README.md)."""
    return batch * math.log(1000) / -math.log(1 - 0.0975 / (1 + 32 / batch))


GEOMETRIES = [
    Geometry(micro_batch=m, accumulation=a, world_size=w) for m in (4, 16, 64) for a in (1, 4) for w in (1, 2, 4, 8)
]


def timed(noise: float = 0.0) -> StepTimeModel:
    values = np.array([0.002, 0.0001, 0.001, 0.004, 0.0005, 0.0, 0.0, 0.0, 1.5])
    seconds = step_seconds(values, Layout.of(GEOMETRIES))
    seconds = seconds * np.exp(noise * np.random.default_rng(1).standard_normal(len(seconds)))
    return fit_step_time([Timing(geometry=g, step_s=float(s)) for g, s in zip(GEOMETRIES, seconds, strict=True)])


def test_the_three_names_equal_those_computed_by_hand() -> None:
    model = timed()
    found = recommend(GEOMETRIES, lambda b: exact(regression_samples(b)), model.throughput)
    by_hand = {
        g: regression_samples(g.global_batch) / g.global_batch * (model.predict(g).value or 0.0) for g in GEOMETRIES
    }
    fastest = min(GEOMETRIES, key=lambda g: by_hand[g])
    cheapest = min(GEOMETRIES, key=lambda g: by_hand[g] * g.world_size)
    balanced = min(GEOMETRIES, key=lambda g: by_hand[g] ** 2 * g.world_size)
    assert (found.fastest.geometry, found.cheapest.geometry) == (fastest, cheapest)
    assert found.balanced.geometry == balanced
    assert found.fastest.time == pytest.approx(by_hand[fastest])
    assert found.cheapest.cost == pytest.approx(by_hand[cheapest] * cheapest.world_size / 3600)
    for choice in found.front:
        assert not any(
            by_hand[g] < choice.time * (1 - 1e-9) and by_hand[g] * g.world_size / 3600 < choice.cost * (1 - 1e-9)
            for g in GEOMETRIES
        )


def test_a_study_and_timings_with_noise_carry_their_intervals() -> None:
    rng = np.random.default_rng(0)
    study = fit(
        Observation(global_batch=b, samples=regression_samples(b) * math.exp(0.05 * rng.standard_normal()))
        for b in (4, 8, 16, 32, 64, 128, 256)
        for _ in range(3)
    )
    model, true = timed(noise=0.03), timed()
    found = recommend(GEOMETRIES, study.predict, model.throughput, studied=(4, 256))
    truth = {
        c.geometry: regression_samples(c.geometry.global_batch)
        / c.geometry.global_batch
        * (true.predict(c.geometry).value or 0.0)
        for c in found.choices
    }
    inside = [(c.time_s.low or 0) <= truth[c.geometry] <= (c.time_s.high or 0) for c in found.choices]
    assert np.mean(inside) >= 0.9
    assert all(g.global_batch > 256 for g, _ in found.left_out)
    assert {why for _, why in found.left_out} <= {
        f"global batch {b} lies outside of the batches studied, 4 to 256" for b in (512, 1024, 2048)
    }


@pytest.mark.parametrize("critical", [64, 256, 1024])
def test_with_throughput_proportional_to_the_batch_the_knee_is_the_critical_batch(critical: int) -> None:
    found = recommend(
        [Geometry(micro_batch=8, world_size=2**i) for i in range(12)],
        lambda b: exact(1e6 * (1 + b / critical)),
        lambda g: exact(100.0 * g.world_size),
    )
    assert found.balanced.geometry.global_batch == critical
    assert found.fastest.geometry.world_size == 2**11
    assert found.cheapest.geometry.world_size == 1


@given(
    st.lists(st.tuples(st.floats(1.0, 1e6), st.floats(1.0, 1e6)), min_size=1, max_size=12),
)
def test_nothing_beats_the_front(speeds: list[tuple[float, float]]) -> None:
    geometries = [Geometry(micro_batch=1 + i, world_size=1 + i % 4) for i in range(len(speeds))]
    table = dict(zip(geometries, speeds, strict=True))
    samples = {g.global_batch: table[g][0] for g in geometries}
    found = recommend(geometries, lambda b: exact(samples[b]), lambda g: exact(table[g][1]))
    for one in found.front:
        for other in found.choices:
            assert other.time >= one.time * (1 - 1e-8) or other.cost >= one.cost * (1 - 1e-8)
    assert found.fastest.time == min(c.time for c in found.choices)
    assert found.cheapest.cost <= min(c.cost for c in found.choices) * (1 + 1e-8)
    assert found.balanced in found.front


def test_of_equals_the_plainer_one_is_taken() -> None:
    both = [Geometry(micro_batch=8, world_size=2), Geometry(micro_batch=16)]
    found = recommend(both, lambda b: exact(1000.0), lambda g: exact(10.0 * g.world_size))
    assert [c.geometry.world_size for c in found.front] == [2]  # twice as fast for the same device-hours
    same = recommend(
        [Geometry(micro_batch=4, accumulation=2), Geometry(micro_batch=8)], lambda b: exact(1.0), lambda g: exact(1.0)
    )
    assert [c.geometry.accumulation for c in same.front] == [1]


def test_without_anything_to_judge_the_reasons_are_told() -> None:
    with pytest.raises(NothingToRecommend, match="samples to the target at global batch 8 are not determined"):
        recommend([Geometry(micro_batch=8)], lambda b: Estimate(), lambda g: exact(1.0))
    with pytest.raises(NothingToRecommend, match="no geometry was given"):
        recommend([], lambda b: Estimate(), lambda g: exact(1.0))


def test_intervals_of_a_quotient_add_as_squares() -> None:
    one = Estimate(value=1.0, low=math.exp(-3), high=math.exp(3))
    two = Estimate(value=1.0, low=math.exp(-4), high=math.exp(4))
    found = quotient(one, two)
    assert (found.low, found.high) == pytest.approx((math.exp(-5), math.exp(5)))
    assert quotient(Estimate(value=1.0), two) == Estimate(value=1.0)


def test_how_many_devices_the_critical_batch_feeds() -> None:
    assert devices_fed(Estimate(value=32.0, low=20.0), 64.0) == Estimate(value=1.0, low=1.0)
    assert devices_fed(exact(1024.0), 64.0) == exact(16.0)


@pytest.mark.parametrize(("gain", "verdict"), [(1.9, "yes"), (1.05, "no"), (1.26, "not told apart")])
def test_whether_to_double_the_batch(gain: float, verdict: str) -> None:
    """At a third of the critical batch, twice the batch needs (1 + 2/3) / (1 + 1/3) = 1.25 times the samples."""
    critical = Estimate(value=300.0, low=250.0, high=360.0)
    found = should_double(100, critical, Estimate(value=gain, low=gain * 0.99, high=gain * 1.01), exact(0.5))
    assert found.verdict == verdict
    assert found.samples.value == pytest.approx(1.25)
    assert found.time.value == pytest.approx(1.25 / gain)
    assert found.learning_rate.value == pytest.approx(math.sqrt(2))


def test_whether_to_double_is_not_told_without_the_parts() -> None:
    open_end = should_double(100, Estimate(low=1000.0), exact(1.5), exact(0.5))
    assert open_end.answer == "not determined: the critical batch is not known"
    assert (open_end.samples.low, open_end.samples.high) == pytest.approx((1.0, 1200 / 1100))
    assert "throughput at twice the batch" in should_double(100, exact(500.0), Estimate(), exact(0.5)).answer


def test_the_speedup_of_a_model_has_the_interval_of_the_model() -> None:
    before, after = Geometry(micro_batch=16, world_size=2), Geometry(micro_batch=32, world_size=2)
    truth = timed().speedup(before, after).value
    found = timed(noise=0.03).speedup(before, after)
    assert truth is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= truth <= found.high
    assert found.high / found.low < 1.1
