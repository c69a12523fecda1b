"""The noise scale pooled over runs: its interval holds the planted ratio, whether runs scatter or not."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.theory.noise_scale import estimate
from orchestrator.theory.pooled_noise import NoiseWindow, pooled


def window(rng: np.random.Generator, scatter: float) -> NoiseWindow:
    """20 updates of a run whose |G|^2 is off 1 by `scatter`; tr(Sigma) is 30."""
    signal = 1.0 + scatter * rng.standard_normal()
    g2 = signal + 1.5 * rng.standard_normal(20)
    found = estimate(30.0 + 5.0 * rng.standard_normal(20) - (g2 - signal), g2)
    return NoiseWindow(
        trace=found.trace,
        trace_se=found.trace_se,
        g2=found.g2,
        g2_se=found.g2_se,
        correlation=found.correlation,
        blocks=found.blocks,
    )


@pytest.mark.parametrize("scatter", [0.0, 0.5])
def test_intervals_cover_as_often_as_they_say(scatter):
    rng = np.random.default_rng(0)
    told = [pooled([window(rng, scatter) for _ in range(5)]) for _ in range(400)]
    known = [one for one in told if one.value is not None]
    # A refusal is no lie: those unbounded intervals cover too.
    held = len(told) - len(known) + sum(one.low <= 30.0 <= one.high for one in known)
    assert 0.92 <= held / len(told) <= 1.0
    assert len(known) > (300 if scatter == 0.0 else 100)


def test_without_runs_nothing_can_be_pooled():
    with pytest.raises(ValueError, match="at least one"):
        pooled([])
