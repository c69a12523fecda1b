"""Arithmetic and bytes of an update against counts by hand."""

from __future__ import annotations

import pytest
from test_memory_prediction import spec_of

from orchestrator.training.intensity import Work, count_work
from orchestrator.training.registry import load_task


def work(micro: int, accumulation: int = 1, **options: object) -> Work:
    return count_work(spec_of(micro=micro, accumulation=accumulation, **options), load_task("digits", dict(options)))


def test_the_products_of_a_perceptron_are_counted() -> None:
    """64 -> 32 -> 10: forward, gradient by weights, and gradient by activations except of the inputs."""
    forward, first = 2 * 8 * (64 * 32 + 32 * 10), 2 * 8 * 64 * 32
    assert work(8, hidden=32).flops == 3 * forward - first
    assert work(8, 4, hidden=32).flops == 4 * (3 * forward - first)


def test_a_larger_batch_computes_more_for_each_byte() -> None:
    found = [work(micro, hidden=256, depth=3).intensity for micro in (1, 16, 256)]
    assert found == sorted(found)
    assert found[0] < 1.0 < found[2]


def test_bytes_grow_with_the_samples_above_what_the_weights_cost() -> None:
    one, two, three = (work(micro).moved_bytes for micro in (16, 32, 48))
    assert three - two == pytest.approx(two - one, rel=0.01)
    assert one > two - one
