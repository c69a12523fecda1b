"""The step-time model: published step times of three workloads, planted parameters, and what it will not predict."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.geometry import Geometry
from orchestrator.theory.step_time import NAMES, Layout, step_seconds
from orchestrator.theory.throughput import StepTimeModel, Timing, fit_step_time

DATA = Path(__file__).resolve().parents[2] / "data"


def published(workload: str) -> list[Timing]:
    with (DATA / "pollux_osdi21_step_times.csv").open() as lines:
        return [
            Timing(
                geometry=Geometry(
                    micro_batch=int(row["micro_batch"]), world_size=int(row["workers"]), nodes=int(row["nodes"])
                ),
                step_s=float(row["step_s"]),
            )
            for row in csv.DictReader(lines)
            if row["workload"] == workload
        ]


def planted(values: list[float], geometries: list[Geometry], noise: float = 0.0, seed: int = 0) -> list[Timing]:
    seconds = step_seconds(np.array(values), Layout.of(geometries))
    seconds = seconds * np.exp(noise * np.random.default_rng(seed).standard_normal(len(seconds)))
    return [Timing(geometry=g, step_s=float(s)) for g, s in zip(geometries, seconds, strict=True)]


def grid(nodes: tuple[int, ...] = (1,)) -> list[Geometry]:
    return [
        Geometry(micro_batch=m, accumulation=a, world_size=w, nodes=n)
        for n in nodes
        for w in (1, 2, 4, 8)
        for a in (1, 4)
        for m in (8, 32, 128)
        if n <= w
    ]


def relative_errors(model: StepTimeModel, timings: list[Timing]) -> np.ndarray:
    values = np.array([model.parameters[name] for name in NAMES])
    seconds = step_seconds(values, Layout.of([timing.geometry for timing in timings]))
    return np.abs(seconds / [timing.step_s for timing in timings] - 1.0)


@pytest.mark.parametrize("draw", range(5))
@pytest.mark.parametrize("workload", ["cifar10", "imagenet", "ncf"])
def test_thirty_percent_of_the_published_step_times_tell_the_rest(workload: str, draw: int) -> None:
    timings = published(workload)
    order = np.random.default_rng(draw).permutation(len(timings))
    cut = round(0.3 * len(timings))
    model = fit_step_time([timings[i] for i in order[:cut]])
    rest = [timings[i] for i in order[cut:]]
    assert np.median(relative_errors(model, rest)) <= 0.10
    inside = [
        found.low <= timing.step_s <= found.high for timing in rest[::2] for found in [model.predict(timing.geometry)]
    ]
    assert np.mean(inside) >= 0.9


def test_exact_timings_give_the_planted_parameters_back() -> None:
    truth = [0.02, 0.001, 0.005, 0.03, 0.002, 0.2, 0.01, 0.0, 1.7]
    model = fit_step_time(planted(truth, grid(nodes=(1, 2))))
    assert model.free == NAMES
    assert [model.parameters[name] for name in NAMES] == pytest.approx(truth, rel=1e-3, abs=1e-6)


def test_workers_that_slow_each_other_are_told_from_communication() -> None:
    truth = [0.02, 0.001, 0.005, 0.03, 0.002, 0.0, 0.0, 0.15, 1.7]
    model = fit_step_time(planted(truth, grid()))
    assert "crowding" in model.free
    assert [model.parameters[name] for name in NAMES] == pytest.approx(truth, rel=1e-3, abs=1e-6)
    single = fit_step_time(planted(truth, [g for g in grid() if g.accumulation == 1]))
    assert "crowding" not in single.free


def test_a_later_timing_lies_in_the_interval_as_often_as_it_says() -> None:
    truth = [0.02, 0.001, 0.005, 0.03, 0.002, 0.2, 0.01, 0.0, 1.7]
    unseen = Geometry(micro_batch=256, accumulation=2, world_size=6)
    expected = float(step_seconds(np.array(truth), Layout.of([unseen]))[0])
    hits, rounds = 0, 100
    for seed in range(rounds):
        found = fit_step_time(planted(truth, grid(), noise=0.05, seed=seed)).predict(unseen)
        later = expected * np.exp(0.05 * np.random.default_rng(10_000 + seed).standard_normal())
        hits += found.low <= later <= found.high
    assert 0.90 <= hits / rounds <= 0.99


@pytest.mark.parametrize("crowding", [0.0, 0.15])
def test_a_speedup_lies_in_its_interval_as_often_as_it_says(crowding: float) -> None:
    truth = [0.02, 0.001, 0.005, 0.03, 0.002, 0.0, 0.0, crowding, 1.7]
    before, after = Geometry(micro_batch=16, world_size=2), Geometry(micro_batch=32, world_size=2)
    first, second = step_seconds(np.array(truth), Layout.of([before, after]))
    hits, rounds = 0, 100
    for seed in range(rounds):
        found = fit_step_time(planted(truth, grid(), noise=0.03, seed=seed)).speedup(before, after)
        hits += found.low <= 2 * first / second <= found.high
    assert hits / rounds >= 0.88


def test_one_slow_update_does_not_bend_the_model() -> None:
    truth = [0.02, 0.001, 0.005, 0.03, 0.002, 0.0, 0.0, 0.0, 1.7]
    timings = planted(truth, grid(), noise=0.01)
    timings[5] = Timing(geometry=timings[5].geometry, step_s=20 * timings[5].step_s)
    model = fit_step_time(timings)
    others = timings[:5] + timings[6:]
    assert np.median(relative_errors(model, others)) < 0.02


def test_what_was_not_timed_is_not_predicted() -> None:
    one = [Geometry(micro_batch=m) for m in (8, 32, 128, 512)]
    two = [Geometry(micro_batch=m, world_size=2) for m in (8, 32, 128)]
    truth = [0.02, 0.001, 0.0, 0.03, 0.0, 0.2, 0.0, 0.0, 1.0]
    model = fit_step_time(planted(truth, one + two))
    assert model.predict(Geometry(micro_batch=64, world_size=2)).value == pytest.approx(0.114, rel=1e-3)
    three = planted(truth, one + [Geometry(micro_batch=m, world_size=3) for m in (8, 32, 128)])
    fewer = fit_step_time(three).predict(Geometry(micro_batch=64, world_size=2))
    assert fewer.low == pytest.approx(0.084, rel=1e-3)
    assert fewer.high == pytest.approx(0.114, rel=1e-3)
    for geometry, why in [
        (Geometry(micro_batch=64, world_size=4), "updates of 2 workers only were timed on one node"),
        (Geometry(micro_batch=64, world_size=4, nodes=2), "no update of several workers on several nodes was timed"),
        (Geometry(micro_batch=64, accumulation=2), "only updates of accumulation 1 were timed"),
    ]:
        assert model.why_not(geometry) == why
        assert model.predict(geometry).value is model.throughput(geometry).value is None


def test_too_few_timings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"micro batches timed: 1; .* at least 2"):
        fit_step_time([Timing(geometry=Geometry(micro_batch=8), step_s=s) for s in (1.0, 1.1, 0.9)])
    with pytest.raises(ValueError, match=r"2 timings for 2 unknowns .* at least 3"):
        fit_step_time([Timing(geometry=Geometry(micro_batch=b), step_s=0.1 * b) for b in (1, 2)])
    with pytest.raises(ValueError, match="nodes = 3: must be at most the 2 workers"):
        Geometry(micro_batch=1, world_size=2, nodes=3)


def test_communication_is_told_from_computation() -> None:
    truth = [0.02, 0.001, 0.005, 0.03, 0.002, 0.0, 0.0, 0.0, 1.0]
    model = fit_step_time(planted(truth, grid()))
    two = Geometry(micro_batch=45, accumulation=1, world_size=2)
    assert model.communication_share(two) == pytest.approx(0.03 / 0.1, rel=1e-2)
    assert model.communication_share(Geometry(micro_batch=45)) == 0.0


@given(
    st.lists(st.floats(1e-9, 1e3), min_size=7, max_size=7),
    st.floats(1.0, 10.0),
    st.integers(1, 10**6),
    st.integers(1, 64),
    st.integers(1, 512),
)
def test_a_step_is_never_shorter_than_its_longest_part(
    seconds: list[float], overlap: float, micro: int, accumulation: int, workers: int
) -> None:
    geometry = Geometry(micro_batch=micro, accumulation=accumulation, world_size=workers)
    found = float(step_seconds(np.array([*seconds, 0.0, overlap]), Layout.of([geometry]))[0])
    gradient = seconds[0] + seconds[1] * micro
    sync = seconds[3] + seconds[4] * (workers - 2) if workers > 1 else 0.0
    assert found >= (accumulation * max(gradient, 0) * (1 - 1e-9))
    assert (accumulation - 1) * gradient + max(gradient, sync) <= found * (1 + 1e-9)
    assert found <= (accumulation * gradient + sync + seconds[2]) * (1 + 1e-9)
