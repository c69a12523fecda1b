"""Tasks by name, and what is refused."""

from __future__ import annotations

import pytest

from orchestrator.errors import ConfigError, TaskError
from orchestrator.tasks.digits import Digits
from orchestrator.training.registry import BUILT_IN, load_task


def test_built_in_and_own():
    task = load_task("digits", {"hidden": 32})
    assert isinstance(task, Digits)
    assert task.config.hidden == 32
    assert isinstance(load_task("orchestrator.tasks.digits:Digits", {}), Digits)


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"table"}))
def test_every_built_in_task_loads(name):
    assert load_task(name, {}).metric_modes["loss"] == "min"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("digit", r"Did you mean digits\?"),
        ("something", "Write module:Class"),
        ("no.such.module:Task", "ModuleNotFoundError"),
        ("orchestrator.tasks.digits:Digit", r"Did you mean orchestrator.tasks.digits:Digits\?"),
        ("pathlib:Path", "needs the members"),
    ],
)
def test_names_that_lead_nowhere(name, text):
    with pytest.raises(TaskError, match=text) as caught:
        load_task(name, {})
    assert caught.value.value == name


@pytest.mark.parametrize(
    ("options", "key", "text"),
    [
        ({"hiden": 3}, "task.hiden", "The nearest valid option is hidden"),
        ({"zzz": 3}, "task.zzz", "Valid options are model, hidden"),
        ({"hidden": "many"}, "task.hidden", "must be a whole number"),
        ({"model": "rnn"}, "task.model", "must be one of mlp, cnn"),
    ],
)
def test_options_that_the_task_refuses(options, key, text):
    with pytest.raises(ConfigError, match=text) as caught:
        load_task("digits", options)
    assert caught.value.key == key


def test_a_constructor_that_raises(tmp_path, monkeypatch):
    (tmp_path / "broken_task_module.py").write_text(
        "from orchestrator.tasks.digits import Digits\n"
        "class Mine(Digits):\n    def __init__(self, config=None):\n        raise OSError('no data here')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TaskError, match="OSError: no data here"):
        load_task("broken_task_module:Mine", {})


def test_a_task_that_misses_a_method_is_refused_before_it_is_built(tmp_path, monkeypatch):
    (tmp_path / "half_a_task.py").write_text(
        "from orchestrator.training.task import Task\n"
        "class Mine(Task):\n"
        "    def model(self):\n        return None\n"
        "    def loss(self, model, batch):\n        return 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TaskError, match=r"needs the members train_data, val_data\. Define them"):
        load_task("half_a_task:Mine", {})
