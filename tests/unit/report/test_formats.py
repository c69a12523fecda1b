from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.report import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (950, "950"), (999.6, "1k"), (1_500, "1.5k"), (20_000, "20k"), (999_960, "1M"), (1_234_567, "1.23M")],
)
def test_counts(value, text):
    assert formats.count(value) == text


@given(st.integers(min_value=0, max_value=10**12 - 10**9))
def test_a_count_is_short_and_within_half_a_percent(value):
    text = formats.count(value)
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    number = float(text.rstrip("kMG")) * units.get(text[-1], 1)
    assert len(text) <= 5
    assert number == pytest.approx(value, rel=0.005)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.96349, "0.9635"), (20_032, "20,032"), ([313, 20_032], "313, 20,032"), (0.0, "0")],
)
def test_numbers(value, text):
    assert formats.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (4.21, "4.2 s"), (9.96, "10 s"), (59.7, "1 min 0 s"), (200, "3 min 20 s"), (7_500, "2 h 5 min")],
)
def test_durations(seconds, text):
    assert formats.duration(seconds) == text


@pytest.mark.parametrize(
    ("n", "text"), [(812, "812 B"), (3_500, "3.4 KiB"), (120 * 2**20, "120.0 MiB"), (3 * 2**30, "3.0 GiB")]
)
def test_sizes(n, text):
    assert formats.size(n) == text


def test_learning_rates():
    assert [formats.lr(v) for v in (0.1, 0.0316228, 3.16e-5)] == ["0.1", "0.0316", "3.16e-05"]
