"""`Draws.normal32`: standard normal, independent, and a function of (seed, position, stream) alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from orchestrator.training.draws import Draws


def test_is_standard_normal_and_uncorrelated() -> None:
    x = Draws(0, np.arange(20_000)).normal32(8)
    assert x.dtype == np.float32
    assert stats.kstest(x.ravel(), "norm").pvalue > 0.01
    assert np.abs(np.corrcoef(x.T) - np.eye(8)).max() < 5 / np.sqrt(20_000)
    assert np.abs(np.corrcoef(x[:-1, 0], x[1:, 0])[0, 1]) < 5 / np.sqrt(20_000)
    # A Box-Muller pair shares its radius: a wrong transform would show in the squares.
    squares = x.astype(np.float64) ** 2
    assert np.abs(np.corrcoef(squares.T) - np.eye(8)).max() < 5 / np.sqrt(20_000)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**50), st.integers(1, 70), st.integers(1, 50), st.data())
def test_rows_do_not_depend_on_what_is_drawn_with_them(
    seed: int, first: int, count: int, length: int, data: st.DataObject
) -> None:
    positions = np.arange(first, first + length)
    whole = Draws(seed, positions).normal32(count)
    chosen = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=5))
    assert np.array_equal(Draws(seed, positions[chosen]).normal32(count), whole[chosen])
    assert np.isfinite(whole).all()
    assert whole.shape == (length, count)


def test_seeds_and_streams_differ() -> None:
    positions = np.arange(3)
    draws = [
        Draws(0, positions).normal32(5),
        Draws(1, positions).normal32(5),
        Draws(0, positions).normal32(5, stream=1),
    ]
    assert len(np.unique(np.stack(draws))) == 45
