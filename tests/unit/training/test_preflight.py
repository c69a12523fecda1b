"""What is found out about a task before anything starts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from orchestrator.errors import TaskError
from orchestrator.tasks.digits import Digits, DigitsConfig
from orchestrator.training.preflight import check_sum, check_task


class Mean(Digits):
    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1]), len(batch[1])


class ConstantWeight(Digits):
    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum"), 1


class Empty(Digits):
    def val_data(self):
        return []


class Broken(Digits):
    def model(self):
        raise ImportError("no such backbone")


class NotOnMeta(Digits):
    def model(self):
        model = super().model()
        if not bool(torch.isfinite(model[0].weight).all()):
            raise AssertionError("initial weights")
        return model


def test_facts_of_digits():
    facts = check_task(Digits())
    assert (facts.train_samples, facts.val_samples) == (1437, 360)
    assert facts.parameters == 64 * 64 + 64 + 64 * 10 + 10
    assert facts.parameter_bytes == 4 * facts.parameters
    assert facts.metric_modes == {"loss": "min", "accuracy": "max"}
    assert facts.fingerprint == Digits().fingerprint()


def test_a_model_that_looks_at_its_weights_is_built_for_real():
    assert check_task(NotOnMeta()).parameters == check_task(Digits()).parameters


def test_dropout_is_no_obstacle():
    check_sum(Digits(DigitsConfig(dropout=0.5)))


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (Mean(), "must return sums"),
        (ConstantWeight(), "weight 1, the same ones twice 1"),
        (Empty(), "at least one sample"),
        (Broken(), "ImportError: no such backbone"),
    ],
)
def test_refusals(task, text):
    with pytest.raises(TaskError, match=text):
        check_task(task)


def test_it_leaves_no_trace():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    check_task(Digits())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


def test_any_class_with_the_members_of_a_task_will_do():
    class Own:
        Config = Digits.Config
        metric_modes = Digits.metric_modes

        def __init__(self):
            self.inner = Digits()

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def model(self) -> nn.Module:
            return self.inner.model()

    assert check_task(Own()).val_samples == 360
