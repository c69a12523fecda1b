"""A batch scan on made-up curves, and on SGD on Gaussian linear regression, whose rates are known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from orchestrator.tasks.regression import exact_expected_loss
from orchestrator.theory.critical_batch import Estimate
from orchestrator.theory.scan import scan
from orchestrator.theory.scan_table import ScanRun, trend

DIM, BATCHES = 31, (16, 32, 64, 128)


def descent(batch: int, seed: int = 0, *, m: float = 0.1, updates: int = 200, **changes: object) -> ScanRun:
    rng = np.random.default_rng([seed, batch])
    delta = np.full(DIM, math.sqrt(1 / DIM))
    lr = m / (1 + (DIM + 1) / batch)
    samples, train, metric, losses = [0.0], [math.nan], [0.5], []
    for k in range(1, updates + 1):
        x = rng.standard_normal((batch, DIM))
        residual = x @ delta
        losses.append(0.5 * float(np.mean(residual**2)))
        delta = delta - lr * (x.T @ residual) / batch
        if (k * batch) // 128 > ((k - 1) * batch) // 128 or k == updates:
            samples.append(float(k * batch))
            train.append(float(np.mean(losses)))
            metric.append(0.5 * float(delta @ delta))
            losses = []
    fields = {"samples_per_second": 1000.0 * batch**0.5, **changes}
    return ScanRun(
        global_batch=batch,
        lr=lr,
        seed=seed,
        updates=updates,
        samples=tuple(samples),
        train_loss=tuple(train),
        metric=tuple(metric),
        **fields,
    )


def test_trends_are_those_of_the_exact_expected_loss():
    found = scan([descent(b, seed) for b in BATCHES for seed in range(3)], metric="val/loss", mode="min")
    assert (found.equal_samples, found.equal_updates, found.trend_unit) == (3200.0, 200, "e-folds a sample")
    rates = {}
    for row in found.rows:
        factor = exact_expected_loss(lr=row.lr, global_batch=row.global_batch, updates=1, dim=DIM) / 0.5
        exact = rates[row.global_batch] = -math.log(factor) / row.global_batch
        assert row.trend.low < exact * 1.05
        assert row.trend.high > exact * 0.95
        assert row.trend.value == pytest.approx(exact, rel=0.1)
    # about as 1 / (1 + B/32)
    for row in found.rows:
        assert row.relative.value == pytest.approx(rates[row.global_batch] / rates[16], rel=0.12)
        assert row.relative.low <= rates[row.global_batch] / rates[16] <= row.relative.high
    assert [row.slower for row in found.rows] == [False, True, True, True]
    assert "are used best at batch 16; clearly worse, against batch 16 (at 95 %), at 32 x0.7" in found.sentences[0]


def test_equal_samples_and_equal_updates_favour_opposite_ends():
    found = scan([descent(b) for b in BATCHES], metric="val/loss", mode="min")
    at_samples = [row.at_equal_samples for row in found.rows]
    at_updates = [row.at_equal_updates for row in found.rows]
    assert at_samples == sorted(at_samples)
    assert at_updates == sorted(at_updates, reverse=True)
    text = " ".join(found.sentences)
    assert "after 3,200 samples is best at batch 16" in text
    assert "after 200 updates at batch 128" in text
    assert "one seed a batch leaves out how whole runs differ" in text
    assert "Batch 128 is trained fastest" in text
    assert "noise scale was not determined" in text
    assert json.dumps(found.to_dict(), allow_nan=False)


def test_what_is_within_the_noise_is_not_told_apart():
    rng = np.random.default_rng(1)
    t = np.arange(1.0, 31.0) * 64

    def noisy(batch: int) -> ScanRun:
        loss = tuple(2.0 - 3e-4 * t + 0.05 * rng.standard_normal(30))
        noise = Estimate(value=50.0, low=40.0, high=60.0)
        return ScanRun(
            global_batch=batch, lr=0.1, seed=0, updates=30, samples=tuple(t), train_loss=loss,
            metric=tuple(1.0 - value for value in loss),
            samples_per_second=100.0, noise_scale=noise,
        )  # fmt: skip

    found = scan([noisy(b) for b in (16, 32, 64)], metric="val/accuracy", mode="max")
    assert not any(row.slower for row in found.rows)
    assert "no batch clearly uses samples better (at 95 %): 16, 32, 64." in found.sentences[0]
    assert "noise scale is 50 samples (40 to 60)" in found.sentences[-1]


def test_diverged_and_short_runs_have_no_numbers():
    gone = descent(128, diverged=True)
    found = scan([descent(16), descent(32), gone], metric="val/loss", mode="min")
    assert found.rows[-1].diverged
    assert found.rows[-1].trend.value is None
    assert found.sentences[0].startswith("Diverged at batch 128")
    found = scan([gone], metric="val/loss", mode="min")
    assert found.sentences[-1] == "Nothing can be said of learning: runs diverged at every batch."
    found = scan([descent(16, updates=16), descent(32, updates=8)], metric="val/loss", mode="min")
    assert found.sentences[0] == (
        "Which batch uses its samples best is not determined: too few evaluations of the smallest batch."
    )


def test_a_seed_that_diverged_at_every_batch_leaves_nothing_to_compare():
    runs = [descent(b, seed, diverged=seed == 1) for b in (16, 32) for seed in range(2)]
    found = scan(runs, metric="val/loss", mode="min")
    assert all(row.diverged for row in found.rows)
    assert found.sentences[-1] == "Nothing can be said of learning: runs diverged at every batch."
    # The seeds that held at a batch where another diverged do not say how far all others are compared.
    short = [descent(16), descent(32), descent(64, updates=20), descent(64, 1, updates=20, diverged=True)]
    assert scan(short, metric="val/loss", mode="min").equal_updates == 200


def test_a_loss_that_rises_is_not_called_learning():
    t = np.arange(1.0, 31.0) * 64
    loss = tuple(1.0 + 1e-3 * t)
    run = ScanRun(global_batch=16, lr=0.1, seed=0, updates=30, samples=tuple(t), train_loss=loss, metric=loss)
    found = scan([run], metric="val/loss", mode="min")
    assert found.sentences[0].startswith("Which batch uses its samples best is not determined: the target is met at")
    assert found.rows[0].trend.high < 0


def test_losses_of_zero_or_less_are_taken_as_they_are():
    t = np.arange(1.0, 31.0) * 64
    loss = tuple(-1e-3 * t)
    run = ScanRun(global_batch=16, lr=0.1, seed=0, updates=30, samples=tuple(t), train_loss=loss, metric=loss)
    found = scan([run], metric="val/loss", mode="min")
    assert (found.trend_unit, found.rows[0].trend.value) == ("loss a sample", pytest.approx(1e-3))


def test_outliers_do_not_carry_the_trend_away():
    rng = np.random.default_rng(0)
    t = np.arange(50.0)
    y = 5.0 - 0.1 * t + 0.1 * rng.standard_normal(50)
    y[::9] += 20.0
    found = trend(t, y)
    assert found.value == pytest.approx(0.1, rel=0.15)
    assert found.low < 0.1 < found.high
