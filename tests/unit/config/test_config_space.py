"""Parameters of a space: both ends included, forms that read back, and every wrong form refused."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orchestrator.config.refusal import Refusal
from orchestrator.config.space import Choices, DurationRange, FloatRange, IntRange, PowerRange
from orchestrator.config.space_form import parse_parameter, parse_space

positive = st.floats(1e-6, 1e6)


@settings(deadline=None)
@given(positive, positive, st.booleans())
def test_float_range_keeps_ends_and_log(a, b, log):
    assume(a != b)
    made = FloatRange(low=min(a, b), high=max(a, b), log=log)
    assert parse_parameter("lr.base", made.to_form()) == made
    assert made.contains(made.low)
    assert made.contains(made.high)
    assert not made.contains(made.high * 2)
    assert made.size is None


@settings(deadline=None)
@given(st.integers(-50, 50), st.integers(1, 60), st.integers(1, 9), st.sampled_from([1, 2, 5, 10, 100]))
def test_float_steps_hit_both_ends(start, count, width, scale):
    low, high = start / scale, (start + count * width) / scale
    made = FloatRange(low=low, high=high, step=width / scale)
    values = made.values()
    assert values[0] == low
    assert values[-1] == high
    assert len(values) == made.size == count + 1
    assert all(made.contains(value) for value in values)
    assert parse_parameter("optimizer.momentum", made.to_form()) == made


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(1, 100), st.integers(1, 50))
def test_int_range_keeps_ends_and_step(low, count, step):
    made = IntRange(low=low, high=low + count * step, step=step)
    assert parse_parameter("task.hidden", made.to_form()) == made
    assert made.values()[0] == low
    assert made.values()[-1] == made.high
    assert len(made.values()) == made.size
    assert step == 1 or not made.contains(low + 1)


@settings(deadline=None)
@given(st.integers(2, 7), st.integers(0, 6), st.integers(1, 6))
def test_power_range_keeps_ends(base, first, count):
    made = PowerRange(low=base**first, high=base ** (first + count), base=base)
    assert parse_parameter("batch.global", made.to_form()) == made
    assert made.values() == tuple(base**n for n in range(first, first + count + 1))


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_duration_range_of_shares_keeps_ends(a, b):
    assume(a != b)
    made = DurationRange(low=min(a, b), high=max(a, b), unit="share")
    assert parse_parameter("lr.warmup", made.to_form()) == made
    assert made.contains(made.at(made.low))
    assert made.contains(made.at(made.high))
    assert made.size is None


def test_duration_range_of_updates_can_be_enumerated():
    made = parse_parameter("lr.warmup", {"low": 0, "high": "3 updates"})
    assert made.values() == ("0", "1 updates", "2 updates", "3 updates")
    assert made.size == 4
    assert not made.contains("2 samples")
    assert not made.contains("4 updates")


def test_choices_take_the_type_of_their_key():
    assert parse_parameter("lr.base", [1, 0.1]).values() == (1.0, 0.1)
    assert parse_parameter("batch.global", [16.0, 32]).values() == (16, 32)
    assert parse_parameter("lr.warmup", [0, "5%", "50 updates"]).values() == ("0", "5%", "50 updates")
    assert parse_parameter("training.grad_clip", [None, 1.0]).contains(None)
    assert not Choices(options=(1, 2)).contains(True)


def test_a_range_takes_the_type_of_its_key():
    assert parse_parameter("lr.base", {"low": 1, "high": 10}) == FloatRange(low=1.0, high=10.0)
    assert parse_parameter("lr.final", {"low": "0%", "high": "10%"}).at(0.05) == "5%"
    assert parse_parameter("batch.global", {"low": 2.0, "high": 8.0}) == IntRange(low=2, high=8)


E5 = "one name has one list or one range, whatever the other parameters are"


@pytest.mark.parametrize(
    ("key", "form", "below", "rule", "remedy"),
    [
        ("batch.global", [], "", "a list of choices must not be empty", "list at least one value"),
        ("batch.global", [16, 16], "", "choice 16 is given twice", "once"),
        ("lr.warmup", ["0%", 0], "", "choice '0' is given twice", "once"),
        ("batch.global", [0, 16], "", "must be at least 1", "1 or more"),
        ("batch.global", [16, "32"], "", "must be a whole number", "without quotes"),
        ("batch.global", [16, True], "", "must be a whole number", "without quotes"),
        ("task.x", [1, "a"], "", "choices must be of one type, these are numbers and text", "all as"),
        ("task.x", [1, True], "", "choices must be of one type, these are booleans and numbers", "all as"),
        ("task.x", [[1], [2]], "", "choices must not be lists themselves", "plain"),
        ("lr.rule", ["none", "sqr"], "", "must be one of none, sqrt", "the nearest valid value is sqrt"),
        ("lr.base", {"low": 1, "high": 0.1}, "", "the range is inverted", "low: 0.1 and high: 1.0"),
        ("lr.base", {"low": 1, "high": 1}, "", "the range holds one value only", "the value itself"),
        ("lr.base", {"low": 0, "high": 1, "log": True}, "low", "a log range must start above 0", "remove log"),
        ("task.x", {"low": -1, "high": 1, "log": True}, "low", "a log range must start above 0", "remove log"),
        ("lr.base", {"low": 0.1, "high": 1, "log": True, "step": 0.1}, "step", "a log range has no step", "remove"),
        ("task.x", {"low": 1, "high": 9, "log": True, "step": 2}, "step", "a log range has no step", "remove"),
        ("task.hidden", {"low": 32, "high": 130, "step": 32}, "step", "do not reach high 130", "128 or 160"),
        ("task.x", {"low": 0.1, "high": 0.6, "step": 0.2}, "step", "do not reach high 0.6", "0.5 or 0.7"),
        ("task.x", {"low": 0, "high": 8, "step": 0}, "step", "must be a number above 0", "leave it out"),
        ("task.x", {"low": 0, "high": 8, "step": 0.5}, "step", "must be a whole number", "whole step"),
        ("batch.global", {"low": 16, "high": 500, "powers_of": 2}, "", "500 is no power of 2", "256 or 512"),
        ("batch.global", {"low": 16, "high": 512, "powers_of": 1}, "powers_of", "at least 2", "write 2"),
        ("batch.global", {"low": 16, "high": 64, "powers_of": 2, "step": 2}, "step", "neither log nor step", "step"),
        ("lr.base", {"low": 0.1, "high": 1, "powers_of": 10}, "", "powers are whole numbers", "log: true"),
        ("batch.global", {"low": 16, "hihg": 64}, "hihg", "unknown key", "the nearest valid key is high"),
        ("batch.global", {"values": [1, 2]}, "values", "unknown key", "the list itself"),
        ("batch.global", {"low": 16}, "", "a range needs high", "high: ..."),
        ("batch.global", {"low": None, "high": 64}, "low", "must be", "plain number"),
        ("batch.micro", {"low": None, "high": 64}, "low", "the ends of a range must be numbers", "list"),
        ("lr.rule", {"low": "none", "high": "sqrt"}, "low", "the ends of a range must be numbers", "list"),
        ("batch.global", {"low": "16", "high": 64}, "low", "must be a whole number", "without quotes"),
        ("lr.base", {"low": 0.1, "high": 1, "log": "yes"}, "log", "must be true or false", "log: true"),
        ("lr.warmup", {"low": "1%", "high": "20 updates"}, "", "both ends must have one unit", "updates"),
        ("lr.warmup", {"low": "1%", "high": "2%", "log": True}, "log", "low and high only", "remove log"),
        ("lr.warmup", {"low": 1, "high": 5}, "low", "a number alone has no unit", '"5%"'),
        ("lr.warmup", [{"low": 0, "high": "1%"}, {"low": 0, "high": "2%"}], "", E5, "widest range"),
        ("lr.warmup", {"if": "batch.global == 16", "low": 0, "high": "1%"}, "", E5, "widest range"),
        ("lr.warmup", {"batch 16": {"low": 0, "high": "1%"}}, "", E5, "widest range"),
        ("lr.warmup", "[0, 10] if batch == 16 else [0, 20]", "", E5, "widest range"),
        ("batch.global", 64, "", "must be a list of choices or a range", "under batch.global outside"),
        ("batch.glob", [16], "", "unknown key", "the nearest valid key is batch.global"),
        ("lr.zzz", [16], "", "unknown key", "valid keys are lr.base, lr.rule"),
        ("training.loader.wrkers", [1], "", "unknown key", "training.loader.workers"),
        ("batch.micro_batch", [16], "", "unknown key", "the nearest valid key is batch.micro"),
        ("bach.global", [16], "", "unknown key", "the nearest valid key is batch.global"),
        ("batch", {"global": [16]}, "", "a space is flat", "batch.global"),
        ("budget.samples", [16], "", "is the same for all trials", "outside the space"),
        ("task.name", ["a", "b"], "", "cannot be searched", "outside the space"),
        ("optimizer.lr", [0.1, 0.2], "", "not an optimizer option", "lr.base"),
    ],
)
def test_refusals(key, form, below, rule, remedy):
    with pytest.raises(Refusal) as caught:
        parse_space({key: form})
    refusal = caught.value
    assert refusal.key == (f"{key}.{below}" if below else key)
    assert rule in refusal.rule
    assert remedy in refusal.remedy


def test_the_first_error_in_the_order_of_the_space_wins():
    with pytest.raises(Refusal) as caught:
        parse_space({"lr.base": [0.1], "batch.global": [], "lr.rul": ["none"]})
    assert caught.value.key == "batch.global"
