"""The noise scale against a known answer, and that it says "not determined" where it has none.

Known answer: loss 0.5 |theta - x|^2 with theta - E[x] = `mean` * ones(10) and noise of standard deviation 2 in each
of 10 coordinates, so tr(Sigma) = 40 and |G|^2 = 10 mean^2.
"""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.noise_scale import MIN_WINDOWS, NoiseMeter, components, estimate

TRACE, G2, B = 40.0, 10.0, 4.0


def gradients(seed: int, windows: int, groups: int, per_group: int, mean: float = 1.0) -> np.ndarray[Any, Any]:
    """Mean gradients of each group, shape ``[windows, groups, 10]``."""
    noise = np.random.default_rng(seed).normal(0.0, 2.0 / math.sqrt(per_group), size=(windows, groups, 10))
    return mean + noise


def norms(groups: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Mean squared norm of the groups, and squared norm of their mean, by window."""
    return (groups**2).sum(-1).mean(1), (groups.mean(1) ** 2).sum(-1)


def measured(seed: int, windows: int, groups: int, per_group: int, mean: float = 1.0) -> tuple[Any, Any]:
    return components(*norms(gradients(seed, windows, groups, per_group, mean)), per_group, groups * per_group)


def test_components_invert_the_expected_norms() -> None:
    assert components(50.0, 15.0, 1, 8) == (40.0, 10.0)


@given(trace=st.floats(0, 1e6), g2=st.floats(0, 1e6), small=st.integers(1, 1000), ratio=st.integers(2, 64))
def test_components_are_exact_on_expectations(trace: float, g2: float, small: int, ratio: int) -> None:
    big = small * ratio
    found = components(g2 + trace / small, g2 + trace / big, small, big)
    tolerance = 1e-9 * (g2 * big + trace + 1.0)
    assert found == pytest.approx((trace, g2), abs=tolerance)


@pytest.mark.parametrize(("small_sq", "big_sq"), [(50.0, 15.0 * 64), (50.0 / 64, 15.0)])
def test_sum_for_mean_or_divided_micro_gradients_show_as_a_negative_trace(small_sq: float, big_sq: float) -> None:
    trace, g2 = components(small_sq, big_sq, 1, 8)
    assert trace / g2 == pytest.approx(-0.954, abs=5e-4)
    rng = np.random.default_rng(0)
    found = estimate(trace * rng.normal(1, 0.1, 100), g2 * rng.normal(1, 0.1, 100))
    assert found.value is None
    assert "tr(Sigma) is clearly below 0" in found.reason


@pytest.mark.parametrize(("groups", "per_group"), [(8, 4), (2, 16), (4, 8)])
def test_known_answer_under_any_split(groups: int, per_group: int) -> None:
    found = estimate(*measured(0, 4000, groups, per_group))
    assert found.value == pytest.approx(B, abs=0.12)
    assert found.low < B < found.high
    assert abs(found.trace - TRACE) < 4 * found.trace_se
    assert abs(found.g2 - G2) < 4 * found.g2_se
    assert (found.windows, found.dropped, found.blocks, found.unit, found.reason) == (4000, 0, 20, "samples", "")


def test_forty_seeds_stay_within_the_published_spread() -> None:
    values = [estimate(*measured(seed, 4000, 8, 4)).value for seed in range(40)]
    assert 3.9 < min(values) < B < max(values) < 4.1


def test_the_ratio_of_the_small_norm_to_the_difference_is_something_else() -> None:
    groups = gradients(0, 4000, 8, 1)
    small, big = groups[:, 0], groups.mean(1)
    other = (small**2).sum(-1).mean() / ((big - small) ** 2).sum(-1).mean()
    assert other == pytest.approx(1.42, abs=0.05)
    assert estimate(*components(*norms(groups), 1, 8)).value == pytest.approx(4.0, abs=0.2)


def test_ratio_of_means_holds_where_mean_of_ratios_and_median_do_not() -> None:
    trace, g2 = measured(0, 4000, 2, 1)
    found = estimate(trace, g2)
    assert found.value == pytest.approx(3.84, abs=0.005)
    assert found.low < B < found.high
    assert np.mean(trace / g2) == pytest.approx(-1.91, abs=0.005)
    assert np.median(trace / g2) == pytest.approx(1.43, abs=0.005)
    assert np.mean(g2 <= 0) == pytest.approx(0.26, abs=0.01)


def test_a_weak_signal_is_found_from_many_windows_and_refused_from_few() -> None:
    mean = math.sqrt(0.01)
    trace, g2 = measured(1, 4000, 8, 4, mean)
    found = estimate(trace, g2)
    assert np.mean(g2 <= 0) == pytest.approx(0.48, abs=0.06)
    assert 330 < found.value < 515
    assert found.low < 400 < found.high
    few = estimate(trace[:60], g2[:60])
    assert few.value is few.low is few.high is None
    assert few.reason.startswith("not determined: |G|^2 is not clearly above 0")


@pytest.mark.parametrize(
    ("windows", "groups", "per_group"), [(400, 2, 1), (50, 2, 16), (12, 8, 4)], ids=["long", "fifty", "short"]
)
def test_interval_covers_the_truth_as_often_as_it_says(windows: int, groups: int, per_group: int) -> None:
    trace, g2 = (part.reshape(400, windows) for part in measured(5, 400 * windows, groups, per_group))
    found = [estimate(t, g) for t, g in zip(trace, g2, strict=True)]
    covered = np.mean([e.value is not None and e.low <= B <= e.high for e in found])
    assert 0.92 <= covered <= 0.98


def test_interval_covers_the_truth_under_autocorrelation() -> None:
    sims, windows, rho = 400, 1000, 0.9
    innovations = np.random.default_rng(2).normal(size=(2, windows, sims)) * math.sqrt(1 - rho**2)
    walk = np.empty_like(innovations)
    walk[:, 0] = innovations[:, 0] / math.sqrt(1 - rho**2)
    for i in range(1, windows):
        walk[:, i] = rho * walk[:, i - 1] + innovations[:, i]
    trace, g2 = 40.0 + 20.0 * walk[0].T, 10.0 + 8.0 * walk[1].T
    blocked = [estimate(t, g) for t, g in zip(trace, g2, strict=True)]
    naive = [estimate(t, g, blocks=windows // 2) for t, g in zip(trace, g2, strict=True)]
    covers = [np.mean([e.low <= B <= e.high for e in found]) for found in (blocked, naive)]
    assert covers[0] >= 0.9
    assert covers[1] < 0.6


def test_clipped_gradients_have_no_noise_scale() -> None:
    groups = gradients(0, 1000, 8, 4)
    single, mean = groups[:, 0], groups.mean(1)
    clipped = [g / np.maximum(1.0, np.linalg.norm(g, axis=-1))[:, None] for g in (single, mean)]
    trace, g2 = components(*((g**2).sum(-1) for g in clipped), 4, 32)
    assert np.mean(trace) / np.mean(g2) == pytest.approx(0.0, abs=1e-12)
    found = estimate(trace, g2)
    assert found.value is None
    assert "as after clipping" in found.reason
    assert estimate(*components((single**2).sum(-1), (mean**2).sum(-1), 4, 32)).value == pytest.approx(4.0, abs=0.3)


def test_a_loss_scale_on_both_parts_cancels_and_on_one_part_is_refused() -> None:
    small_sq, big_sq = norms(gradients(0, 1000, 8, 4))
    scaled = 65536.0**2
    right, both = (estimate(*components(f * small_sq, f * big_sq, 4, 32)) for f in (1.0, scaled))
    assert both.value == pytest.approx(right.value, rel=1e-12)
    assert both.trace == pytest.approx(2.0**32 * right.trace, rel=1e-12)
    small_only = estimate(*components(scaled * small_sq, big_sq, 4, 32))
    big_only = estimate(*components(small_sq, scaled * big_sq, 4, 32))
    assert small_only.value is big_only.value is None
    assert "|G|^2 is not clearly above 0" in small_only.reason
    assert "tr(Sigma) is clearly below 0" in big_only.reason


def test_gradients_without_noise_give_zero_and_not_a_negative_number() -> None:
    rng = np.random.default_rng(0)
    g2 = 10.0 * np.exp(-np.arange(200) / 100)
    found = estimate(rng.normal(-1e-3, 1.0, 200) * 1e-3, g2)
    assert found.value is not None
    assert 0.0 <= found.low <= found.value <= found.high < 1e-3


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), max_size=60),
    st.floats(0.5, 0.999),
)
def test_an_estimate_is_never_negative_and_always_json(pairs: list[tuple[float, float]], confidence: float) -> None:
    found = estimate([p[0] for p in pairs], [p[1] for p in pairs], confidence=confidence)
    json.dumps(found.to_dict(), allow_nan=False)
    if found.value is None:
        assert found.reason.startswith("not determined: ")
        assert found.low is found.high is None
    else:
        assert 0.0 <= found.low <= found.value * (1 + 1e-9) <= found.high * (1 + 1e-6) + 1e-9
        assert found.reason == ""


def test_a_higher_confidence_is_a_wider_interval() -> None:
    parts = measured(3, 400, 8, 4)
    narrow, wide = (estimate(*parts, confidence=c) for c in (0.8, 0.99))
    assert wide.low < narrow.low < narrow.value == wide.value < narrow.high < wide.high


def test_non_finite_windows_are_dropped_and_counted() -> None:
    trace, g2 = measured(0, 200, 8, 4)
    clean = estimate(trace, g2)
    dirty = estimate(np.insert(trace, [50, 90], [np.nan, 1.0]), np.insert(g2, [50, 90], [1.0, np.inf]))
    assert dirty.dropped == 2
    assert (dirty.value, dirty.low, dirty.high) == (clean.value, clean.low, clean.high)


@pytest.mark.parametrize("count", [0, 1, MIN_WINDOWS - 1])
def test_too_few_windows_are_not_determined(count: int) -> None:
    found = estimate([40.0] * count, [10.0] * count)
    assert found.value is None
    assert found.reason == f"not determined: {count} finite windows, {MIN_WINDOWS} are needed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 1.0, 8, 8), "one batch size only"),
        ((1.0, 1.0, 16, 8), "0 < small < big"),
        ((1.0, 1.0, 0, 8), "0 < small < big"),
        ((-1.0, 1.0, 1, 8), "must not be negative"),
        ((1.0, -1.0, 1, 8), "must not be negative"),
    ],
)
def test_components_and_meter_refuse_alike(arguments: tuple[float, float, float, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        components(*arguments)
    with pytest.raises(ValueError, match=message):
        NoiseMeter().append(*arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"g2": [1.0]}, "equal length"),
        ({"trace": [[1.0, 2.0]], "g2": [[1.0, 2.0]]}, "one-dimensional"),
        ({"confidence": 1.0}, "confidence = 1.0"),
        ({"confidence": 0.0}, "confidence = 0.0"),
        ({"blocks": 4}, "blocks = 4"),
    ],
)
def test_estimate_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate(**{"trace": [1.0, 2.0], "g2": [1.0, 2.0], **change})


def test_meter_agrees_with_the_arrays_and_survives_json() -> None:
    small_sq, big_sq = norms(gradients(0, 300, 8, 4))
    meter = NoiseMeter()
    for small, big in zip(small_sq.tolist(), big_sq.tolist(), strict=True):
        meter.append(small, big, 4, 32)
    meter.append(math.inf, 1.0, 4, 32)
    trace, g2 = components(small_sq, big_sq, 4, 32)
    whole = meter.estimate()
    assert (whole.windows, whole.dropped) == (300, 1)
    assert whole.value == estimate(trace, g2).value
    assert meter.estimate(last=101).value == estimate(trace[-100:], g2[-100:]).value
    assert meter.estimate(last=5).reason.startswith("not determined")
    again = NoiseMeter.from_dict(json.loads(json.dumps(meter.to_dict(), allow_nan=False)))
    assert again.estimate() == whole
    with pytest.raises(ValueError, match="last = 0"):
        meter.estimate(last=0)
