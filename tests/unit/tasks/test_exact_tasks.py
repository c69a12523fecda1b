"""The two tasks with known answers: what training gives agrees with what the formulas say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from orchestrator.tasks import quadratic, regression
from orchestrator.tasks.quadratic import Quadratic, QuadraticConfig
from orchestrator.tasks.regression import Regression, RegressionConfig
from orchestrator.training.draws import Draws
from orchestrator.training.task import Task


def trained_losses(task: Task, *, lr: float, global_batch: int, updates: int, seeds: int) -> np.ndarray:
    """The exact evaluation after plain SGD, for each seed."""
    losses = []
    train, val = task.train_data(), task.val_data()
    for seed in range(seeds):
        model = task.model()
        (theta,) = model.parameters()
        for k in range(updates):
            positions = np.arange(k * global_batch, (k + 1) * global_batch)
            total, weight = task.loss(model, train.fetch(positions, Draws(seed, positions)))
            (gradient,) = torch.autograd.grad(total, theta)
            with torch.no_grad():
                theta -= lr * gradient / weight
        with torch.no_grad():
            total, weight = task.evaluate(model, val.fetch(np.arange(len(val)), None))["loss"]
        losses.append(float(total) / weight)
    return np.array(losses)


def assert_agrees(losses: np.ndarray, exact: float) -> None:
    error = losses.std(ddof=1) / np.sqrt(len(losses))
    assert error < 0.06 * exact
    assert abs(losses.mean() - exact) < 3.5 * error


@pytest.mark.parametrize(("lr", "global_batch", "noise"), [(0.5, 4, 1.0), (1.2, 16, 1.0), (1.0, 8, 3.0)])
def test_quadratic_trains_to_its_expected_loss(lr: float, global_batch: int, noise: float) -> None:
    task = Quadratic(QuadraticConfig(dim=32, noise=noise))
    losses = trained_losses(task, lr=lr, global_batch=global_batch, updates=25, seeds=100)
    exact = quadratic.exact_expected_loss(lr=lr, global_batch=global_batch, updates=25, dim=32, noise=noise)
    assert_agrees(losses, exact)


def test_regression_trains_to_its_expected_loss() -> None:
    losses = trained_losses(Regression(), lr=0.25, global_batch=16, updates=8, seeds=150)
    assert_agrees(losses, regression.exact_expected_loss(lr=0.25, global_batch=16, updates=8))


def test_quadratic_closed_form_is_its_recursion() -> None:
    h = 1.0 / np.arange(1, 257)
    second = np.ones(256)
    for k in range(50):
        exact = quadratic.exact_expected_loss(lr=0.7, global_batch=8, updates=k)
        assert exact == pytest.approx(0.5 * np.sum(h * second), rel=1e-12)
        second = (1 - 0.7 * h) ** 2 * second + 0.7**2 * h / 8


def test_quadratic_starts_at_half_the_harmonic_number_and_may_be_noiseless() -> None:
    task = Quadratic()
    total, weight = task.evaluate(task.model(), task.val_data().fetch(np.array([0]), None))["loss"]
    # H_256 = 6.124344962817281
    assert float(total.detach()) / weight == pytest.approx(6.124344962817281 / 2, rel=1e-6)
    clean = Quadratic(QuadraticConfig(dim=5, noise=0.0))
    losses = trained_losses(clean, lr=0.9, global_batch=2, updates=10, seeds=1)
    exact = quadratic.exact_expected_loss(lr=0.9, global_batch=2, updates=10, dim=5, noise=0.0)
    assert losses[0] == pytest.approx(exact, rel=1e-5)


def test_quadratic_gradient_noise_has_the_stated_variance() -> None:
    task = Quadratic(QuadraticConfig(dim=16, noise=2.0))
    xi = task.train_data().fetch(np.arange(20_000), Draws(0, np.arange(20_000)))
    model = task.model()
    (theta,) = model.parameters()
    h = 1.0 / np.arange(1, 17)
    for rows in (xi[:1], xi[1:2]):
        (gradient,) = torch.autograd.grad(task.loss(model, rows)[0], theta)
        assert gradient.numpy() == pytest.approx(h + np.sqrt(2.0 * h) * rows[0].numpy(), rel=1e-5, abs=1e-6)
    assert xi.double().var(dim=0).numpy() == pytest.approx(np.ones(16), rel=0.05)


@pytest.mark.parametrize("theta", [0.0, 0.7])
def test_regression_noise_scale_is_d_plus_1_at_any_theta(theta: float) -> None:
    task = Regression(RegressionConfig(dim=31, signal=2.0))
    positions = np.arange(60_000)
    x = task.train_data().fetch(positions, Draws(1, positions))
    model = task.model()
    (parameter,) = model.parameters()
    with torch.no_grad():
        parameter.fill_(theta)
    residual = model(x)
    (summed,) = torch.autograd.grad(task.loss(model, x)[0], parameter)
    gradients = (x * residual.detach()[:, None]).double().numpy()
    assert summed.numpy() == pytest.approx(gradients.sum(axis=0), rel=1e-3)

    n = len(gradients)
    covariance_trace = gradients.var(axis=0, ddof=1).sum()
    squared_norm = (gradients.mean(axis=0) ** 2).sum() - covariance_trace / n
    delta_2 = 31 * (theta - np.sqrt(2.0 / 31)) ** 2
    assert squared_norm == pytest.approx(delta_2, rel=0.03)
    assert covariance_trace == pytest.approx(32 * delta_2, rel=0.03)
    val = task.val_data()
    total, weight = task.evaluate(model, val.fetch(np.arange(31), None))["loss"]
    assert float(total.detach()) / weight == pytest.approx(delta_2 / 2, rel=1e-5)


def test_every_position_draws_anew_and_every_epoch() -> None:
    data = Quadratic(QuadraticConfig(dim=4)).train_data()
    same_ids = np.zeros(3, dtype=np.int64)
    rows = data.fetch(same_ids, Draws(0, np.array([0, 1, len(data)])))
    assert len(torch.unique(rows)) == 12


def test_formulas_refuse_what_they_do_not_cover() -> None:
    with pytest.raises(ValueError, match=r"lr = 2\.0"):
        quadratic.exact_expected_loss(lr=2.0, global_batch=8, updates=1)
    with pytest.raises(ValueError, match="global_batch = 0"):
        quadratic.exact_expected_loss(lr=0.1, global_batch=0, updates=1)
    with pytest.raises(ValueError, match="updates = -1"):
        regression.exact_expected_loss(lr=0.1, global_batch=1, updates=-1)
