"""Which norms make a pair: the ground truth S = 40, G2 = 10 must come back exactly from exact squares."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.training.probe import NoiseProbe
from orchestrator.training.reducer import Share, Totals

TRACE, G2 = 40.0, 10.0


def square(samples: float) -> float:
    """E|g|^2 of a mean gradient over so many samples."""
    return G2 + TRACE / samples


def probe(world: int, accumulation: int, *, enabled: bool = True) -> NoiseProbe:
    micro = 8 // (world * accumulation)
    plan = BatchPlan(global_batch=8, micro_batch=micro, accumulation=accumulation, world_size=world)
    return NoiseProbe(plan, enabled=enabled)


def totals(weights: list[float], samples: list[float]) -> Totals:
    counted = [w for w in weights if w > 0]
    squares = [square(b) for w, b in zip(weights, samples, strict=True) if w > 0]
    return Totals(
        loss=0.0,
        square_sum=sum(squares),
        weight=sum(weights),
        inverse_sum=sum(1 / w for w in counted),
        counted=len(counted),
        errors=0,
        too_big=0,
        stops=0,
        pauses=0,
        grad_norm=0.0,
    )


@pytest.mark.parametrize(("weights", "samples"), [([4.0, 4.0], [4, 4]), ([5.0, 15.0], [2, 6])])
def test_workers(weights, samples):
    meter = probe(2, 1)
    for _ in range(12):
        meter.add(totals(weights, samples), Share(micro_norms=[]), square(8) ** 0.5)
    found = meter.outcome()
    assert (found["trace"], found["g2"]) == pytest.approx((TRACE, G2))
    assert found["windows"] == 12


def test_micro_batches_of_one_worker():
    meter = probe(1, 2)
    share = Share(weight=20.0, micro_norms=[(square(2), 5.0), (square(6), 15.0)])
    for _ in range(12):
        meter.add(totals([20.0], [8]), share, square(8) ** 0.5)
    found = meter.outcome()
    assert (found["trace"], found["g2"]) == pytest.approx((TRACE, G2))


def test_a_worker_without_weight_is_not_a_small_batch():
    meter = probe(4, 1)
    for _ in range(12):
        meter.add(totals([4.0, 0.0, 4.0, 0.0], [4, 0, 4, 0]), Share(micro_norms=[]), square(8) ** 0.5)
    assert (meter.outcome()["trace"], meter.outcome()["g2"]) == pytest.approx((TRACE, G2))
    meter.add(totals([4.0, 0.0, 0.0, 0.0], [8, 0, 0, 0]), Share(micro_norms=[]), square(8) ** 0.5)
    assert meter.outcome()["windows"] == 12, "one share alone is the global batch"


def test_off_and_impossible():
    assert probe(2, 1, enabled=False).outcome() is None
    alone = probe(1, 1)
    assert not alone.enabled
    assert "one worker without accumulation" in alone.outcome()["reason"]
    assert alone.metrics() == {}


def test_an_evaluation_tells_of_the_last_tenth_of_the_updates_however_few_they_are():
    """A |G|^2 that falls by e^5 in 200 updates: over the whole run the early ones decide."""
    meter = probe(2, 1)
    rng = np.random.default_rng(0)
    for update in range(200):
        g2 = G2 * math.exp(-update / 40)
        small, big = (g2 + TRACE / samples * rng.gamma(50, 0.02) for samples in (4, 8))
        many = totals([4.0, 4.0], [4, 4])._replace(square_sum=2 * small)
        meter.add(many, Share(micro_norms=[]), big**0.5)
    found, last = meter.metrics(), G2 * math.exp(-190 / 40)
    assert abs(found["noise_scale_g2"] - last) < 2 * found["noise_scale_g2_se"]
    assert abs(found["noise_scale_trace"] - TRACE) < 2 * found["noise_scale_trace_se"]
    assert found["noise_scale_g2"] < 0.5 * meter.outcome()["g2"]
    assert meter.outcome()["end_windows"] == 20
    assert found["noise_scale_blocks"] == 10.0
