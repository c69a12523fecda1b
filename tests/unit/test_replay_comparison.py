"""Two histories are the same only if every value is, and the largest difference is named."""

from __future__ import annotations

import math
from copy import deepcopy
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.tracking.comparison import OF_THE_MACHINE, OF_THE_SPLIT, compare, history_of
from orchestrator.tracking.schema import KEYS

NAMES = ("val/loss", "train/loss", "lr", "grad_norm", "noise/value", "early_grad_norm")
FLOATS = st.floats(-1e300, 1e300)
STEPS = st.lists(st.integers(1, 10**9), min_size=1, max_size=5, unique=True)


@st.composite
def histories(draw: st.DrawFn) -> dict[str, dict[int, float]]:
    steps = draw(STEPS)
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    history = {name: {step: draw(FLOATS) for step in steps} for name in names}
    return {**history, "updates": {step: float(i) for i, step in enumerate(sorted(steps))}}


@given(history=histories())
def test_a_history_is_identical_to_itself(history: dict[str, dict[int, float]]) -> None:
    found = compare(history, deepcopy(history))
    assert found.holds
    assert found.values == sum(map(len, history.values()))
    assert str(found) == f"identical: {len(history['updates'])} evaluations, {found.values} values"


@given(history=histories(), data=st.data())
def test_one_other_value_is_found_where_it_is(history: dict[str, dict[int, float]], data: st.DataObject) -> None:
    other = deepcopy(history)
    name = data.draw(st.sampled_from(sorted(set(history) - {"updates"})))
    step = data.draw(st.sampled_from(sorted(history[name])))
    other[name][step] = math.nextafter(history[name][step], math.inf)
    for found in (compare(history, other), compare(other, history)):
        assert not found.holds
        assert found.differing == 1
        assert found.worst is not None
        assert (found.worst.name, found.worst.at_samples) == (name, step)
        assert f"{name} at {step} samples" in str(found)
    assert compare(history, other, up_to_samples=step - 1).differing == 0


@given(history=histories(), data=st.data())
def test_a_value_on_one_side_only_is_never_within_a_tolerance(
    history: dict[str, dict[int, float]], data: st.DataObject
) -> None:
    other = deepcopy(history)
    name = data.draw(st.sampled_from(sorted(set(history) - {"updates"})))
    step = data.draw(st.sampled_from(sorted(history[name])))
    del other[name][step]
    for found in (compare(history, other, tolerance=10.0), compare(other, history, tolerance=10.0)):
        assert not found.holds
        assert "a value missing on one side" in str(found)


def test_a_tolerance_is_relative_to_the_larger_value() -> None:
    one, other = {"val/loss": {10: 200.0}, "updates": {10: 1.0}}, {"val/loss": {10: 199.0}, "updates": {10: 1.0}}
    found = compare(one, other, tolerance=0.005)
    assert found.worst is not None
    assert found.worst.largest == 0.005
    assert found.holds
    assert str(found).startswith("equal within 0.005: 1 evaluations, 2 values, largest relative difference 0.005")
    assert not compare(one, other, tolerance=0.0049).holds


def test_the_same_values_with_another_end_are_not_the_same() -> None:
    history = {"val/loss": {10: 1.0}, "updates": {10: 1.0}}
    found = compare(history, history, endings=("completed", "target_reached"))
    assert not found.holds
    assert str(found) == "not identical: ended as completed, and now as target_reached"


def test_nothing_in_common_is_not_the_same() -> None:
    assert not compare({}, {}).holds


@pytest.mark.parametrize("name", [key.name for key in KEYS if (key.kind, key.scope) == ("metric", "trial")])
def test_what_is_left_out_is_what_the_machine_decides(name: str) -> None:
    """Every metric of the schema by its unit: times, speeds and memory are left out, and what is derived of them."""
    (unit,) = {key.unit for key in KEYS if (key.kind, key.scope, key.name) == ("metric", "trial", name)}
    left_out = any(fnmatchcase(name, pattern) for pattern in OF_THE_MACHINE)
    of_the_machine = unit in ("s", "ms", "samples/s", "bytes") or name == "data_wait_fraction"
    derived = name.split("/")[0] == "value" or name == "samples_to_target"
    assert left_out == (of_the_machine or derived)


def test_losses_are_compared_under_another_split() -> None:
    assert not any(fnmatchcase(name, pattern) for name in ("val/loss", "train/loss", "lr") for pattern in OF_THE_SPLIT)


def test_a_replayed_history_is_named_as_in_mlflow() -> None:
    evaluation = {"samples_seen": 64, "updates": 2, "metrics": {"val/loss": 0.5}, "train_seconds": 1.0}
    outcome = {
        "status": "completed",
        "samples_seen": 64,
        "first_grad_norms": [2.0, 1.0],
        "noise": {"value": 41.5, "reason": ""},
        "skipped_updates": 0,
    }
    assert history_of([evaluation], outcome, 32) == {
        "val/loss": {64: 0.5},
        "updates": {64: 2.0},
        "early_grad_norm": {32: 2.0, 64: 1.0},
        "noise/value": {64: 41.5},
        "skipped_updates": {64: 0.0},
    }
