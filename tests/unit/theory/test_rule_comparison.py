"""Rules compared across batches: the planted rule wins, nothing is extrapolated, and one batch tells nothing."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.lr_rules import RULES, scale
from orchestrator.theory.rule_comparison import RuleChoice, compare_rules

CHOICES = [RuleChoice(rule=r, exponent=0.75, noise_scale=100.0) for r in RULES if r != "sde"]
GRID = [0.1 * 2 ** (i / 2) for i in range(-8, 17)]


def planted(rule: RuleChoice, batches: tuple[int, ...] = (64, 256, 1024), base: float = 0.1) -> Any:
    """Trials whose best peak follows `rule`; the loss is the squared distance in log2 LR, worse for larger batches."""
    trials = []
    for batch in batches:
        best = base * scale(rule.rule, 64, batch, exponent=rule.exponent, noise_scale=rule.noise_scale)
        trials += [(batch, lr, batch / 1024 + math.log2(lr / best) ** 2) for lr in [*GRID, best]]
    return trials


@pytest.mark.parametrize("truth", CHOICES, ids=lambda c: c.rule)
@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_planted_rule_is_found_with_its_base(truth: RuleChoice, mode: Any) -> None:
    sign = 1 if mode == "min" else -1
    trials = [(b, lr, sign * v) for b, lr, v in planted(truth)]
    results = {r.choice.rule: r for r in compare_rules(trials, CHOICES, mode=mode, reference_batch=64)}
    winner = results.pop(truth.rule)
    assert winner.base_lr == pytest.approx(0.1, rel=1e-9)
    assert winner.mean_shortfall == pytest.approx(0.0, abs=1e-12)
    assert winner.mean_value == pytest.approx(sign * (64 + 256 + 1024) / 1024 / 3)
    assert [b.global_batch for b in winner.batches] == [64, 256, 1024]
    assert not winner.at_edge
    assert all(other.mean_shortfall > 0.05 for other in results.values())
    assert all(other.covered == other.total == 3 for other in results.values())


def test_shortfall_is_what_the_rule_loses_at_each_batch() -> None:
    trials = [(b, lr, abs(math.log2(lr / best))) for b, best in ((64, 0.1), (256, 0.4)) for lr in (0.1, 0.2, 0.4)]
    (none,) = compare_rules(trials, [RuleChoice(rule="none")], mode="min", reference_batch=64)
    assert [b.tuned_lr for b in none.batches] == [0.1, 0.4]
    assert sum(b.shortfall for b in none.batches) == pytest.approx(2.0)
    assert none.mean_shortfall == pytest.approx(1.0)


def test_between_tried_peaks_the_result_is_interpolated_in_log_lr() -> None:
    trials = [(64, 0.1, 1.0), (256, 0.1, 3.0), (256, 1.6, 1.0)]
    (found,) = compare_rules(trials, [RuleChoice(rule="linear")], mode="min", reference_batch=64)
    at_64, at_256 = found.batches
    assert (at_64.interpolated, at_64.value) == (False, 1.0)
    assert at_256.interpolated
    assert at_256.peak_lr == pytest.approx(0.4)
    assert at_256.value == pytest.approx(2.0)
    assert at_256.shortfall == pytest.approx(1.0)


def test_the_reference_batch_itself_need_not_be_tried() -> None:
    trials = [(128, 0.2, 1.0), (512, 0.8, 2.0)]
    (found,) = compare_rules(trials, [RuleChoice(rule="linear")], mode="min", reference_batch=64)
    assert found.base_lr == pytest.approx(0.1)
    assert [(b.value, b.interpolated) for b in found.batches] == [(1.0, False), (2.0, False)]


def test_outside_of_the_tried_range_a_batch_is_not_covered() -> None:
    trials = [(64, 0.1, 1.0), (256, 0.1, 1.0), (1024, 0.3, 1.0), (1024, 0.5, 2.0)]
    (found,) = compare_rules(trials, [RuleChoice(rule="none")], mode="min", reference_batch=64)
    assert (found.covered, found.total) == (2, 3)
    assert [b.value for b in found.batches] == [1.0, 1.0, None]
    assert found.batches[2].shortfall is None
    assert found.batches[2].tuned_value == 1.0
    assert found.mean_value == 1.0


def test_coverage_comes_before_shortfall() -> None:
    trials = [(64, 0.1, 0.0), (64, 0.2, 9.0), (256, 0.1, 0.0), (256, 0.2, 0.0), (1024, 0.2, 0.0)]
    (found,) = compare_rules(trials, [RuleChoice(rule="none")], mode="min", reference_batch=64)
    assert found.base_lr == pytest.approx(0.2)
    assert found.covered == 3
    assert found.mean_shortfall == pytest.approx(3.0)


def test_a_base_at_the_end_of_what_was_tried_is_marked() -> None:
    trials = [(b, lr, -lr) for b in (64, 256) for lr in (0.1, 0.2, 0.4)]
    (found,) = compare_rules(trials, [RuleChoice(rule="none")], mode="min", reference_batch=64)
    assert found.base_lr == pytest.approx(0.4)
    assert found.at_edge


def test_the_best_of_equal_peaks_counts() -> None:
    trials = [(64, 0.1, 5.0), (64, 0.1 * (1 + 1e-12), 2.0), (64, 0.1, math.nan), (256, 0.1, 1.0)]
    (found,) = compare_rules(trials, [RuleChoice(rule="none")], mode="min", reference_batch=64)
    assert [b.value for b in found.batches] == [2.0, 1.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_diverged_trial_never_wins_and_is_not_interpolated_over(bad: float, mode: Any) -> None:
    trials = [(64, 0.1, 1.0), (64, 0.4, bad), (64, 1.6, 1.0), (256, 0.2, 1.0), (256, 0.4, 1.0), (256, 0.8, 1.0)]
    trials += [(1024, 0.1, bad)]
    (found,) = compare_rules(trials, [RuleChoice(rule="none")], mode=mode, reference_batch=64)
    assert found.covered == 1
    assert found.total == 2
    assert "inside the tried learning rates of two batches" in found.reason


def test_one_batch_or_none_is_not_determined() -> None:
    for trials in ([(64, lr, lr) for lr in (0.1, 0.2)], []):
        (found,) = compare_rules(trials, [RuleChoice(rule="sqrt")], mode="min", reference_batch=64)
        assert found.base_lr is found.mean_value is found.mean_shortfall is None
        assert found.batches == ()
        assert "only across two" in found.reason


trial = st.tuples(st.sampled_from([32, 64, 128, 512]), st.floats(1e-4, 10), st.floats(-100, 100))


@given(st.lists(trial, max_size=25), st.sampled_from(["min", "max"]))
def test_results_lie_between_tried_ones_and_are_json(trials: Any, mode: Any) -> None:
    for found in compare_rules(trials, CHOICES, mode=mode, reference_batch=64):
        json.dumps(found.to_dict(), allow_nan=False)
        for at in found.batches:
            lrs = [lr for batch, lr, _ in trials if batch == at.global_batch]
            values = [value for batch, _, value in trials if batch == at.global_batch]
            assert at.tuned_value == (min if mode == "min" else max)(values)
            if at.value is None:
                continue
            assert min(lrs) * (1 - 1e-8) <= at.peak_lr <= max(lrs) * (1 + 1e-8)
            assert min(values) - 1e-9 <= at.value <= max(values) + 1e-9
            assert at.shortfall == pytest.approx(abs(at.value - at.tuned_value), abs=1e-9)
            factor = scale(found.choice.rule, 64, at.global_batch, exponent=0.75, noise_scale=100.0)
            assert at.peak_lr == pytest.approx(found.base_lr * factor, rel=1e-9)


@given(st.lists(trial, min_size=2, max_size=12))
def test_no_other_base_of_the_same_coverage_does_better(trials: Any) -> None:
    (found,) = compare_rules(trials, [RuleChoice(rule="none")], mode="min", reference_batch=64)
    if found.base_lr is None:
        return
    for step in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        # A knot on the line makes this base a candidate without changing any curve.
        pinned = compare_rules(
            [*trials, *_probe(trials, found.base_lr * step)], [RuleChoice(rule="none")], mode="min", reference_batch=64
        )[0]
        assert pinned.covered == found.covered
        assert pinned.mean_shortfall == pytest.approx(found.mean_shortfall, abs=1e-6)


def _probe(trials: Any, lr: float) -> list[tuple[int, float, float]]:
    """Trials at `lr` that lie on the straight line between their neighbours, so that no curve changes."""
    added = []
    for batch in {t[0] for t in trials}:
        best: dict[float, float] = {}
        for b, x, v in trials:
            if b == batch:
                best[x] = min(v, best.get(x, math.inf))
        below, above = max((x for x in best if x < lr), default=None), min((x for x in best if x > lr), default=None)
        if below is None or above is None or math.log(above / below) < 1e-3:
            continue
        if any(abs(math.log(x / lr)) < 1e-6 for x in best):
            continue
        share = math.log(lr / below) / math.log(above / below)
        added.append((batch, lr, (1 - share) * best[below] + share * best[above]))
    return added


@pytest.mark.parametrize(
    ("trials", "change", "message"),
    [
        ([(64, 0.0, 1.0)], {}, "peak_lr = 0.0"),
        ([(0, 0.1, 1.0)], {}, "global_batch = 0"),
        ([], {"mode": "best"}, "mode = 'best'"),
        ([], {"reference_batch": 0}, "reference_batch = 0"),
        ([(64, 0.1, 1.0)], {"rules": [RuleChoice(rule="power")]}, "exponent = None"),
    ],
)
def test_compare_rules_refuses(trials: Any, change: dict[str, Any], message: str) -> None:
    arguments = {"rules": [RuleChoice(rule="sqrt")], "mode": "min", "reference_batch": 64, **change}
    with pytest.raises(ValueError, match=message):
        compare_rules(trials, **arguments)
