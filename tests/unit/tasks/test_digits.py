"""Digits: the split, the standardisation, and that the default model learns within its promised budget."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from orchestrator.tasks.digits import Digits, DigitsConfig


def test_split_is_1437_and_360_stratified_and_disjoint() -> None:
    x, y = Digits().train_data().tensors
    x_val, y_val = Digits().val_data().tensors
    assert (len(x), len(x_val)) == (1437, 360)
    share = np.bincount(y_val) / (np.bincount(y) + np.bincount(y_val))
    assert np.all(np.abs(share - 0.2) < 0.01)
    rows = torch.cat([x, x_val])
    # scikit-learn's 1,797 images hold no two that are equal.
    assert len(torch.unique(rows, dim=0)) == 1797


def test_standardised_by_training_pixels() -> None:
    x = Digits().train_data().tensors[0].double()
    assert float(x.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(x.std(correction=0)) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("config", "lr"), [(DigitsConfig(), 0.1), (DigitsConfig(model="cnn", hidden=8), 0.1)])
def test_reaches_95_percent_within_20000_samples(config: DigitsConfig, lr: float) -> None:
    task = Digits(config)
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    order = np.random.default_rng(0)
    for _ in range(20_000 // 64):
        batch = task.train_data().fetch(order.integers(0, 1437, 64), None)
        total, weight = task.loss(model, batch)
        optimizer.zero_grad()
        (total / weight).backward()
        optimizer.step()
    with torch.no_grad():
        right, count = task.evaluate(model, task.val_data().fetch(np.arange(360), None))["accuracy"]
    assert count == 360
    assert float(right) / count > 0.95


def test_dropout_is_absent_unless_asked_for() -> None:
    def dropouts(config: DigitsConfig) -> int:
        return sum(isinstance(m, torch.nn.Dropout) for m in Digits(config).model().modules())

    assert [dropouts(DigitsConfig(depth=2, dropout=p)) for p in (0.0, 0.1)] == [0, 2]
    assert [dropouts(DigitsConfig(model="cnn", depth=2, dropout=p)) for p in (0.0, 0.1)] == [0, 2]
