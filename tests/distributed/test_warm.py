"""A trial leaves nothing behind, and finds nothing: what came before in its processes does not change a bit."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import toys
from broken import Broken
from harness import Gang
from torch import nn

from orchestrator.config.trial import OptimizerRef


class Dropped(toys.Tokens):
    """With dropout and batch norm, several DDP buckets, and random numbers of every kind in its initial weights."""

    def __init__(self, *, width: int = 600) -> None:
        super().__init__()
        self.width, self.built = width, []

    def model(self) -> nn.Module:
        model = nn.Sequential(
            nn.Linear(toys.FEATURES, self.width),
            nn.BatchNorm1d(self.width),
            nn.Dropout(0.3),
            nn.Linear(self.width, self.width),
            nn.ReLU(),
            nn.Linear(self.width, toys.CLASSES),
        )
        with torch.no_grad():
            model[0].bias += torch.from_numpy(np.random.normal(size=self.width)) + random.random()
        self.built.append(model)
        return model


class Wide(Broken):
    """Its gradients fill several DDP buckets, of which backward reaches some before it breaks at the model's input."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(toys.FEATURES, 900),
            nn.Tanh(),
            nn.Sequential(nn.Linear(900, 900), nn.Tanh(), nn.Linear(900, toys.CLASSES)),
        )


def _bits(group: Any, trial: Any) -> tuple[Any, ...]:
    task = Dropped()
    outcome, seen = toys.train(group, task, trial)
    weights = b"".join(tensor.numpy().tobytes() for tensor in task.built[0].state_dict().values())
    told = [(e.samples_seen, e.metrics["val/loss"], e.metrics["train/loss"]) for e in seen]
    return outcome.status, hashlib.sha256(weights).hexdigest(), outcome.first_grad_norms, told, outcome.notes


def _model_is_gone(group: Any, trial: Any) -> tuple[bool, bool]:
    task = Dropped()
    toys.train(group, task, trial)
    model = weakref.ref(task.built.pop())
    at_once = model() is None
    gc.collect()
    return at_once, model() is None


def _generators(group: Any, trial: Any) -> tuple[Any, Any]:
    def state() -> tuple[Any, ...]:
        return (
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
            torch.get_num_threads(),
            torch.get_default_dtype(),
        )

    before = state()
    toys.train(group, Dropped(width=20), trial)
    return before, state()


@pytest.fixture
def fresh():
    gangs = []

    def start(world_size: int) -> Gang:
        gangs.append(Gang(world_size))
        return gangs[-1]

    yield start
    for gang in gangs:
        gang.close()


def test_alone_and_as_the_fifth_gives_the_same_bits(two, fresh):
    adam = {"precision": "fp32", "optimizer": OptimizerRef(name="AdamW"), "lr": 1e-3}
    trials = [toys.spec((8, 2, 2), updates=6, reducer=reducer, **adam) for reducer in ("flat", "ddp")]
    two.run(toys.train, toys.Tokens(), toys.spec(precision="bf16"))
    two.run(toys.train, Broken("late"), toys.spec((8, 2, 2), reducer="ddp"))
    two.run(toys.train, Broken("nan"), toys.spec((8, 2, 2)))
    two.run(_bits, toys.spec((16, 1, 2), updates=3, reducer="ddp"))
    warm = [two.run(_bits, trial) for trial in trials]
    gang = fresh(2)
    alone = [gang.run(_bits, trial) for trial in reversed(trials)][::-1]
    assert warm == alone
    for ranks in warm:
        assert ranks[0][:3] == ranks[1][:3], "both ranks hold the same weights"
        assert ranks[0][0] == "completed"
        assert [note.partition(":")[0] for note in ranks[0][-1]] == ["statistically equal"] * 2


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
def test_the_model_is_gone_after_its_trial(reducer, two):
    for at_once, after_collection in two.run(_model_is_gone, toys.spec(updates=3, reducer=reducer)):
        assert after_collection
        assert at_once or reducer == "ddp", "DDP holds itself in a cycle; ours must not"


def test_generators_and_settings_come_back(two):
    for before, after in two.run(_generators, toys.spec(updates=3)):
        assert before == after


def test_a_backward_that_breaks_between_buckets(two):
    pids = two.run(_pid)
    for outcome, _ in two.run(toys.train, Wide("late"), toys.spec((8, 2, 2), reducer="ddp")):
        assert (outcome.status, outcome.failure.phase, outcome.failure.message) == (
            "failed",
            "backward",
            "backward broke",
        )
    for outcome, _ in two.run(toys.train, Wide("no"), toys.spec((8, 2, 2), updates=3, reducer="ddp")):
        assert outcome.status == "completed"
    assert two.run(_pid) == pids


def _pid(group: Any) -> int:
    return os.getpid()
