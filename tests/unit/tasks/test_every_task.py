"""The contract that every built-in task keeps."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from orchestrator.tasks.bytes import Bytes, BytesConfig
from orchestrator.tasks.digits import Digits, DigitsConfig
from orchestrator.tasks.quadratic import Quadratic, QuadraticConfig
from orchestrator.tasks.regression import Regression
from orchestrator.tasks.table import Table, TableConfig
from orchestrator.training.draws import Draws
from orchestrator.training.task import Fetchable, Task

NAMES = ["mlp", "cnn", "bytes", "unpacked", "classes", "numbers", "quadratic", "odd quadratic", "regression"]


@pytest.fixture(scope="session")
def make(wine_path: Path, diabetes_path: Path) -> Callable[[str], Task]:
    makers: dict[str, Callable[[], Task]] = {
        "mlp": Digits,
        "cnn": lambda: Digits(DigitsConfig(model="cnn", hidden=8, depth=3)),
        "bytes": lambda: Bytes(BytesConfig(width=16, heads=2, context=16)),
        "unpacked": lambda: Bytes(BytesConfig(width=16, heads=2, context=16, packed=False, tied=False)),
        "classes": lambda: Table(TableConfig(path=str(wine_path), label="cultivar")),
        "numbers": lambda: Table(TableConfig(path=str(diabetes_path), label="progression")),
        "quadratic": Quadratic,
        "odd quadratic": lambda: Quadratic(QuadraticConfig(dim=7, noise=0.5)),
        "regression": Regression,
    }
    return lambda name: makers[name]()


def tensors(batch: Any) -> list[Tensor]:
    return [batch] if isinstance(batch, Tensor) else list(batch)


def model_in_float64(task: Task) -> torch.nn.Module:
    torch.manual_seed(0)
    return task.model().double()


def in_float64(batch: Any) -> Any:
    parts = [t.double() if t.is_floating_point() else t for t in tensors(batch)]
    return parts[0] if isinstance(batch, Tensor) else tuple(parts)


def fetch(task: Task, first: int, last: int, seed: int = 3) -> Any:
    positions = np.arange(first, last)
    data = task.train_data()
    return data.fetch(positions % len(data), Draws(seed, positions))


@pytest.mark.parametrize("name", NAMES)
def test_twice_the_batch_is_twice_the_loss_and_the_weight(make: Callable[[str], Task], name: str) -> None:
    task = make(name)
    model = model_in_float64(task)
    batch = in_float64(fetch(task, 0, 6))
    twice = [torch.cat([t, t]) for t in tensors(batch)]
    total, weight = task.loss(model, batch)
    total_2, weight_2 = task.loss(model, twice[0] if isinstance(batch, Tensor) else tuple(twice))
    assert total.shape == ()
    assert abs(float(total.detach())) > 1e-3
    assert float(total_2.detach()) == pytest.approx(2 * float(total.detach()), rel=1e-12)
    assert float(weight_2) == 2 * float(weight) > 0


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_a_batch_sum_to_the_whole(make: Callable[[str], Task], name: str) -> None:
    task = make(name)
    model = model_in_float64(task)
    sums = [task.loss(model, in_float64(fetch(task, a, b))) for a, b in [(0, 16), (0, 3), (3, 4), (4, 16)]]
    losses = [float(total.detach()) for total, _ in sums]
    assert sum(losses[1:]) == pytest.approx(losses[0], rel=1e-12)
    assert sum(float(weight) for _, weight in sums[1:]) == float(sums[0][1])


@pytest.mark.parametrize("name", NAMES)
def test_a_part_of_a_fetch_is_the_fetch_of_a_part(make: Callable[[str], Task], name: str) -> None:
    task = make(name)

    @settings(max_examples=20, deadline=None)
    @given(st.integers(0, 2**40), st.integers(1, 40), st.data())
    def holds(first: int, length: int, data: st.DataObject) -> None:
        a = data.draw(st.integers(0, length - 1))
        b = data.draw(st.integers(a + 1, length))
        whole = tensors(fetch(task, first, first + length))
        part = tensors(fetch(task, first + a, first + b))
        assert all(torch.equal(w[a:b], p) for w, p in zip(whole, part, strict=True))

    holds()


@pytest.mark.parametrize("name", NAMES)
def test_data_is_fetchable_survives_pickling_and_has_a_stable_fingerprint(
    make: Callable[[str], Task], name: str
) -> None:
    task, again = make(name), make(name)
    assert task.fingerprint() == again.fingerprint()
    for data in (task.train_data(), task.val_data()):
        assert isinstance(data, Fetchable)
        copy = pickle.loads(pickle.dumps(data))
        ids = np.array([len(data) - 1, 0])
        assert len(copy) == len(data)
        pairs = zip(tensors(copy.fetch(ids, None)), tensors(data.fetch(ids, None)), strict=True)
        assert all(torch.equal(a, b) and len(a) == 2 for a, b in pairs)


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_returns_the_metrics_that_are_promised(make: Callable[[str], Task], name: str) -> None:
    task = make(name)
    model = model_in_float64(task)
    data = task.val_data()
    batch = in_float64(data.fetch(np.arange(min(len(data), 8)), None))
    with torch.no_grad():
        metrics = task.evaluate(model, batch)
        total, weight = task.loss(model, batch)
    assert set(metrics) == set(task.metric_modes)
    assert float(metrics["loss"][0]) == pytest.approx(float(total), rel=1e-12)
    assert float(metrics["loss"][1]) == float(weight)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_a_function_of_torchs_seed(make: Callable[[str], Task], name: str) -> None:
    task = make(name)
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(task.model().state_dict())
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])


def test_options_are_typed_and_closed() -> None:
    for raw in ({"hidden": "64"}, {"hidden": True}, {"hidden": 0}, {"dropout": 1.0}, {"width": 3}, {"model": "vit"}):
        with pytest.raises(ValueError, match=next(iter(raw))):
            DigitsConfig.model_validate(raw)
    with pytest.raises(ValueError, match="width 10 must be divisible by heads 4"):
        BytesConfig(width=10)
    with pytest.raises(ValueError, match="path"):
        TableConfig.model_validate({})
