"""Any class of torch.optim by name, and clear refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orchestrator.errors import ConfigError
from orchestrator.training.optimizer import build_optimizer, check_optimizer, step


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "NAdam", "RMSprop", "Adagrad", "Adafactor"])
def test_builds_and_steps_at_the_given_rate(name):
    parameter = nn.Parameter(torch.ones(3))
    optimizer = build_optimizer(name, {}, [parameter], lr=1.0)
    parameter.grad = torch.ones(3)
    step(optimizer, 0.0)
    assert parameter.tolist() == [1.0] * 3
    step(optimizer, 0.1)
    assert all(value < 1.0 for value in parameter.tolist())


@pytest.mark.parametrize(
    ("name", "options", "key", "text"),
    [
        ("AdmW", {}, "optimizer.name", "Did you mean AdamW?"),
        ("adamw", {}, "optimizer.name", "Did you mean AdamW?"),
        ("Optimizer", {}, "optimizer.name", "class of torch.optim"),
        ("LBFGS", {}, "optimizer.name", "several times a step"),
        ("SparseAdam", {}, "optimizer.name", "sparse"),
        ("SGD", {"momentun": 0.9}, "optimizer.momentun", "Did you mean momentum?"),
        ("SGD", {"lr": 0.1}, "optimizer.lr", "lr.base"),
        ("SGD", {"params": []}, "optimizer.params", "no such option"),
        ("SGD", {"momentum": -1.0}, "optimizer.momentum", "momentum"),
        ("AdamW", {"betas": [0.9, 2.0]}, "optimizer.betas", "beta"),
    ],
)
def test_refusals(name, options, key, text):
    with pytest.raises(ConfigError, match=text.replace("?", r"\?")) as caught:
        check_optimizer(name, options)
    assert caught.value.key == key


def test_lists_from_yaml_become_tuples():
    optimizer = build_optimizer("AdamW", {"betas": [0.8, 0.9]}, [nn.Parameter(torch.ones(1))], lr=0.1)
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)


def test_fused_unless_told_otherwise():
    parameters = [nn.Parameter(torch.ones(1))]
    assert build_optimizer("SGD", {}, parameters, lr=0.1).param_groups[0]["fused"]
    assert not build_optimizer("SGD", {"foreach": True}, parameters, lr=0.1).param_groups[0]["fused"]
    assert not build_optimizer("SGD", {"fused": False}, parameters, lr=0.1).param_groups[0]["fused"]
