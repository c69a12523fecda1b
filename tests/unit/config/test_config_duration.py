"""Durations: three forms, nothing else, and text that reads back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config.duration import Duration
from orchestrator.config.refusal import Refusal

shares = st.floats(0, 1).map(lambda v: Duration(value=v, unit="share"))
counts = st.builds(Duration, value=st.integers(0, 10**15), unit=st.sampled_from(["samples", "updates"]))


@settings(deadline=None)
@given(shares | counts)
def test_text_reads_back(duration):
    assert Duration.parse(str(duration)) == duration


@pytest.mark.parametrize(
    ("raw", "samples"),
    [
        ("5%", 1000),
        ("0.07 %", 14),
        ("2000 samples", 2000),
        ("1 sample", 1),
        ("50 updates", 3200),
        ("2e3 samples", 2000),
        (0, 0),
        ("0", 0),
        ("0%", 0),
        ("100%", 20000),
    ],
)
def test_to_samples(raw, samples):
    assert Duration.parse(raw).samples(budget_samples=20000, global_batch=64) == samples


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (5, "a number alone has no unit"),
        (0.05, "a number alone has no unit"),
        ("5", "a number alone has no unit"),
        ("5 epochs", "unknown unit 'epochs'"),
        ("five updates", "is not a duration"),
        (True, "is not a duration"),
        (None, "is not a duration"),
        ("-5%", "must not be negative"),
        (float("nan"), "a number alone has no unit"),
    ],
)
def test_anything_else_is_refused_with_the_three_forms(raw, rule):
    with pytest.raises(Refusal) as caught:
        Duration.parse(raw)
    assert caught.value.rule == rule
    assert caught.value.remedy == 'write "5%" of the budget, "2000 samples" or "50 updates"'


@pytest.mark.parametrize(
    ("raw", "rule"),
    [("101%", "a share of the budget is at most 100%"), ("2.5 updates", "updates are whole numbers")],
)
def test_out_of_range(raw, rule):
    with pytest.raises(Refusal, match=rule) as caught:
        Duration.parse(raw)
    assert caught.value.value == raw


def test_nothing_is_the_same_in_every_unit():
    assert Duration.parse("0%") == Duration.parse("0 updates") == Duration.parse(0)
