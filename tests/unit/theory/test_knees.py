"""The two knees of a throughput curve: exact curves, noise, flat and falling ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from orchestrator.theory.geometry import Geometry
from orchestrator.theory.knees import Knees, find_knees
from orchestrator.theory.throughput import Timing

LADDER = [2**i for i in range(12)]


def knees(
    step_s: Callable[[int], float], batches: Sequence[int] = LADDER, noise: float = 0.0, seed: int = 0, workers: int = 1
) -> Knees:
    rng = np.random.default_rng(seed)
    return find_knees(
        [
            Timing(
                geometry=Geometry(micro_batch=b, world_size=workers),
                step_s=step_s(b) * float(np.exp(noise * rng.standard_normal())),
            )
            for b in batches
        ]
    )


def straight(b: int) -> float:
    return 0.096 + 0.001 * b


@pytest.mark.parametrize("batches", [LADDER, [1, 32, 1024], [16, 64, 256, 1024]])
def test_both_knees_of_a_straight_step_time(batches: list[int]) -> None:
    """2 (96 + b) / (96 + 2b) < 1.3 from b = 112 on, and b / (96 + b) >= 0.9 from b = 864 on."""
    found = knees(straight, batches)
    assert found.doubling.value == pytest.approx(112, abs=1e-3)
    assert found.ceiling.value == pytest.approx(864, abs=1e-2)
    assert found.half_speed.value == pytest.approx(96, abs=1e-3)
    assert found.most_per_s.value == pytest.approx(1000, abs=1e-2)
    assert found.doubling.reason == found.ceiling.reason == ""
    assert found.falls_after is None


def test_the_ceiling_counts_all_workers() -> None:
    assert knees(straight, workers=4).most_per_s.value == pytest.approx(4000, rel=1e-6)


def test_the_intervals_cover_the_knees() -> None:
    rounds = 60
    found = [knees(straight, noise=0.03, seed=seed) for seed in range(rounds)]
    assert sum((k.doubling.low or 0) <= 112 <= (k.doubling.high or 0) for k in found) >= 0.88 * rounds
    assert sum((k.ceiling.low or 0) <= 864 <= (k.ceiling.high or 0) for k in found) >= 0.88 * rounds


def test_a_flat_curve_has_its_knees_at_or_below_the_least_batch() -> None:
    found = knees(lambda b: 0.001 * b, noise=0.01)
    for knee in (found.doubling, found.ceiling):
        assert knee.value is knee.low is None
        assert knee.high == 1.0
        assert knee.reason == "at or below 1, the least batch timed"
    assert found.most_per_s.value == pytest.approx(1000, rel=0.02)


def test_a_step_of_constant_time_has_its_knees_above_the_largest_batch() -> None:
    found = knees(lambda b: 0.1, noise=0.01)
    for knee in (found.doubling, found.ceiling):
        assert knee.value is knee.high is None
        assert knee.low is not None
        assert knee.low >= 2048
        assert knee.reason == "above 2048, the largest batch timed. Time larger ones"
    assert found.most_per_s.value is None


def test_a_knee_beyond_the_batches_is_not_told_as_seen() -> None:
    short = knees(straight, [32, 64, 128, 256], noise=0.02)
    assert short.doubling.low is not None
    assert short.doubling.high is not None
    assert short.doubling.low < 112 < short.doubling.high
    assert "256, the largest batch timed" in short.ceiling.reason


def test_where_the_curve_falls_after_its_peak_the_knee_is_an_interval() -> None:
    found = knees(lambda b: straight(b) * {1024: 1.15, 2048: 1.5}.get(b, 1.0))
    peak_per_s = 512 / straight(512)
    assert found.falls_after == found.peak == 512
    assert found.most_per_s.value == pytest.approx(peak_per_s)
    # b / (96 + b) * 1000 = 0.9 peak
    share = 0.9 * peak_per_s / 1000
    assert found.ceiling.value == pytest.approx(96 * share / (1 - share), rel=1e-3)
    assert found.ceiling.high is not None
    assert 1024 < found.ceiling.high < 2048
    assert found.ceiling.reason.startswith("the curve falls after 512: near the ceiling up to 1")
    assert found.doubling.value == pytest.approx(112, rel=1e-3)
    assert found.gains[1024] < 0 < found.gains[256]


def test_what_is_no_curve_is_refused() -> None:
    with pytest.raises(ValueError, match="micro batches timed: 2; a curve needs at least 3"):
        knees(straight, [1, 2])
    mixed = [Timing(geometry=Geometry(micro_batch=b, world_size=w), step_s=1.0) for w in (1, 2) for b in (1, 2, 3)]
    with pytest.raises(ValueError, match="equal in workers and nodes"):
        find_knees(mixed)
    with pytest.raises(ValueError, match="accumulation 1"):
        find_knees([Timing(geometry=Geometry(micro_batch=b, accumulation=2), step_s=1.0) for b in (1, 2, 3)])
