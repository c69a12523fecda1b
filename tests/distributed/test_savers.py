"""What saves memory alone leaves a trial's every bit as it is, over ranks, micro batches and both reducers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import toys
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2))
        self.out = nn.Linear(24, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.layers(x))


class Deep(toys.Tokens):
    """Blocks with running statistics and dropout."""

    def model(self) -> nn.Module:
        blocks = [Block(toys.FEATURES) for _ in range(3)]
        return nn.Sequential(*blocks, nn.Linear(toys.FEATURES, toys.CLASSES))


def trained(group: Any, trial: Any) -> Any:
    outcome, seen = toys.train(group, Deep(), trial)
    return outcome.status, outcome.reason, outcome.first_grad_norms, [e.metrics["val/loss"] for e in seen]


SAVERS = {"activations": {"checkpoint_activations": "Block"}, "optimizer": {"offload_optimizer": True}}


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_the_same_bits(reducer: str, accumulation: int, two: Any) -> None:
    trial = toys.spec((8, accumulation, 2), updates=6, reducer=reducer, eval_every_samples=16 * accumulation)
    plain = two.run(trained, trial)
    assert plain[0][0] == "completed"
    assert len(plain[0][3]) == 6
    for saver in SAVERS.values():
        assert two.run(trained, replace(trial, **saver)) == plain


@pytest.mark.parametrize("saver", SAVERS)
def test_what_saves_memory_alone_is_no_other_trial(saver: str) -> None:
    trial = toys.spec()
    saved = replace(trial, **SAVERS[saver])
    assert (saved.key, saved.trajectory) == (trial.key, trial.trajectory)
