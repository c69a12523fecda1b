"""The exponent of the best learning rate: planted, exact, and which scaling rules it rules out."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.lr_exponent import RULES, BestLr, lr_exponent
from orchestrator.theory.lr_rules import scale

QUADRATICS = Path(__file__).resolve().parents[2] / "data" / "quadratics.csv"


def exact(workload: str) -> list[BestLr]:
    with QUADRATICS.open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["workload"] == workload]
    return [BestLr(global_batch=int(row["global_batch"]), lr=float(row["best_lr"])) for row in rows]


def test_the_noisy_quadratic() -> None:
    """0.78 over 2 to 16 is the slope of the exact best learning rates, whose critical batch is 29.3."""
    points = [point for point in exact("noisy_quadratic_d256") if point.global_batch >= 2]
    found = lr_exponent(points, critical_batch=29.3)
    assert found.batches == (2, 4, 8, 16)
    assert found.beyond[0] == 32
    assert found.alpha == pytest.approx(0.78, abs=0.005)
    assert found.low < found.alpha < found.high
    assert "none" in found.ruled_out
    assert "sqrt" in found.ruled_out


def test_far_below_the_critical_batch_it_is_linear() -> None:
    points = [point for point in exact("noisy_quadratic_d10000") if point.global_batch <= 64]
    found = lr_exponent(points, critical_batch=844)
    assert found.alpha == pytest.approx(1.0, abs=0.01)
    assert found.ruled_out[:2] == ("none", "sqrt")


def test_the_rules_are_those_that_scale() -> None:
    for rule, exponent in RULES.items():
        assert scale(rule, 64, 256) == pytest.approx(4.0**exponent)


@given(
    alpha=st.floats(-1, 2),
    base=st.floats(1e-6, 1e3),
    batches=st.sets(st.integers(1, 10_000), min_size=3, max_size=8),
    known=st.booleans(),
)
def test_a_planted_exponent_is_found(alpha: float, base: float, batches: set[int], known: bool) -> None:
    points = [BestLr(global_batch=b, lr=base * b**alpha, se_log=0.1 if known else None) for b in batches]
    found = lr_exponent(points)
    assert found.alpha == pytest.approx(alpha, abs=1e-6)
    assert found.lr_at_one == pytest.approx(base, rel=1e-5)
    assert found.low < found.high
    assert set(found.ruled_out) | set(found.left) == set(RULES)
    for rule, exponent in RULES.items():
        assert (rule in found.left) == (found.low <= exponent <= found.high)
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("known", [True, False])
def test_the_interval_covers_as_often_as_it_says(known: bool) -> None:
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(1000):
        lrs = 0.1 * np.array([4, 8, 16, 32, 64]) ** 0.6 * np.exp(0.2 * rng.normal(size=5))
        found = lr_exponent(
            BestLr(global_batch=b, lr=float(lr), se_log=0.2 if known else None)
            for b, lr in zip((4, 8, 16, 32, 64), lrs, strict=True)
        )
        hits.append(found.low <= 0.6 <= found.high)
    assert 0.93 <= np.mean(hits) <= 0.97


def test_a_precise_batch_weighs_more() -> None:
    points = [(4, 0.1, 0.01), (16, 0.4, 0.01), (64, 0.4, 1.0)]
    found = lr_exponent(BestLr(global_batch=b, lr=lr, se_log=se) for b, lr, se in points)
    assert found.alpha == pytest.approx(1.0, abs=0.01)


def test_points_off_any_power_law_widen_the_interval() -> None:
    bent = [BestLr(global_batch=b, lr=lr, se_log=0.01) for b, lr in ((4, 0.1), (16, 0.4), (64, 0.5), (256, 0.51))]
    found = lr_exponent(bent)
    assert found.bend < 1e-6
    assert found.high - found.low > 0.3


@pytest.mark.parametrize("batches", [[], [8], [8, 64], [8, 64, 512]])
def test_too_few_batches(batches: list[int]) -> None:
    found = lr_exponent([BestLr(global_batch=b, lr=0.1) for b in batches], critical_batch=100)
    assert found.alpha is found.low is None
    assert found.reason.startswith(f"not determined: {min(len(batches), 2)} batches up to the critical batch, 100")
    assert found.left == tuple(RULES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BestLr(global_batch=0, lr=0.1), "global_batch = 0"),
        (lambda: BestLr(global_batch=1, lr=0.0), "lr = 0.0"),
        (lambda: BestLr(global_batch=1, lr=0.1, se_log=math.inf), "se_log = inf"),
        (lambda: lr_exponent([], confidence=0.0), "confidence = 0.0"),
        (lambda: lr_exponent([], critical_batch=-1.0), "critical_batch = -1.0"),
        (
            lambda: lr_exponent([BestLr(global_batch=1, lr=0.1), BestLr(global_batch=2, lr=0.1, se_log=0.1)]),
            "for 1 of 2",
        ),
    ],
)
def test_illegal_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
