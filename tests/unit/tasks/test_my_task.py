"""The guide's example is this folder's my_task.py, word for word, and works."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

HERE = Path(__file__).parent
GUIDE = HERE.parents[2] / "docs" / "guide" / "bring_your_own.md"


@pytest.fixture
def my_task(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("my_task")


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def mean(task: Any, model: torch.nn.Module, data: Any, name: str) -> float:
    (batch,) = DataLoader(data, batch_size=len(data))
    with torch.no_grad():
        total, weight = task.evaluate(model, batch)[name]
    return float(total) / float(weight)


def test_the_guide_shows_this_code() -> None:
    code = (HERE / "my_task.py").read_text()
    assert blocks()[0] == code
    wrapper = code[code.index("class Wine(Task)") :]
    assert sum(bool(line.strip()) for line in wrapper.splitlines()) < 20


def test_the_example_and_its_variants_learn(my_task: ModuleType) -> None:
    namespace = dict(vars(my_task))
    for block in blocks()[1:]:
        exec(block, namespace)
    task = namespace["WineWithAccuracy"](my_task.WineConfig(hidden=16))
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    (batch,) = DataLoader(task.train_data(), batch_size=200)
    rows = namespace["Rows"](*batch)
    before = mean(task, model, task.val_data(), "loss")
    for _ in range(30):
        total, weight = task.loss(model, rows.fetch(torch.arange(len(rows)), None))
        optimizer.zero_grad()
        (total / weight).backward()
        optimizer.step()
    assert mean(task, model, task.val_data(), "loss") < 0.5 * before
    assert mean(task, model, task.val_data(), "accuracy") > 0.9
