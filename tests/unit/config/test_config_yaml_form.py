"""YAML in and out: 1.2's scalars, no key twice, text that reads back."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config.refusal import Refusal
from orchestrator.config.yaml_form import dump, parse

text = st.text(st.characters(exclude_categories=["Cs"]))
tricky = st.sampled_from(
    ["1e-3", "no", "on", "12:30", "007", "1_0", "0x1f", "2026-01-01", "<<", "=", "null", "~", "%", ""]
)
unusual = st.sampled_from(["\x85", "a\x85b", "\u2028", "\ufeff", "\x7f"])
strings = text | tricky | unusual
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | strings
plain = st.recursive(scalars, lambda c: st.lists(c) | st.dictionaries(strings, c), max_leaves=10)


@settings(deadline=None)
@given(plain)
def test_reads_back_here_and_in_any_yaml_reader(value):
    written = dump(value)
    assert parse(written) == value
    assert yaml.safe_load(written) == value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001),
        ("2e4", 20000.0),
        ("1.5E+2", 150.0),
        ("20_000", 20000),
        ("off", "off"),
        ("007", "007"),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("none", "none"),
        ("5%", "5%"),
        ("null", None),
        ("", None),
    ],
)
def test_plain_scalars(written, value):
    parsed = parse(written)
    assert parsed == value
    assert type(parsed) is type(value)


def test_anchors_and_merges_still_work():
    assert parse("a: &x {p: 1}\nb: {<<: *x, q: 2}\n") == {"a": {"p": 1}, "b": {"p": 1, "q": 2}}


@pytest.mark.parametrize(
    ("written", "key", "rule"),
    [
        ("a: 1\nb: 2\na: 3\n", "a", "is given twice, in lines 1 and 3"),
        ("batch: {global: 1, global: 2}", "batch.global", "is given twice, in lines 1 and 1"),
        ("a: [1, 2\n", "", "line 2, column 1: is no valid YAML"),
        ("a: 1\n\tb: 2\n", "", "line 2"),
        ("a: \x00", "", "line 1: is no valid YAML"),
        ("a: !!python/object:os.system {}", "", "is no valid YAML"),
        ("a: " + "[" * 600, "", "is nested too deeply"),
        ("a: 1\n---\nb: 2\n", "", "line 2"),
        ("a: " + "9" * 5000, "", "is no valid YAML"),
        ("? [a, b]\n: 1\n", "", "is no valid YAML"),
    ],
)
def test_refusals(written, key, rule):
    with pytest.raises(Refusal) as caught:
        parse(written)
    assert caught.value.key == key
    assert rule in caught.value.rule


def test_a_parameter_given_twice_is_a_conditional_space():
    with pytest.raises(Refusal) as caught:
        parse("space:\n  lr.warmup: [0, 5%]\n  lr.warmup: [0, 10%]\n")
    assert caught.value.key == "space.lr.warmup"
    assert "one range for one name" in caught.value.remedy
