"""Law 2: how a global batch is split does not change the trajectory."""

from __future__ import annotations

import pytest
import toys

from orchestrator.training.group import Solo

SPLITS = [(64, 1, 1), (16, 4, 1), (32, 1, 2), (8, 4, 2), (4, 4, 4)]
UPDATES = 200


def _losses(task, split, reducer, gangs):
    trial = toys.spec(split, updates=UPDATES, eval_every_samples=64 * 20, reducer=reducer)
    world = split[2]
    if world == 1:
        outcome, seen = toys.train(Solo(), task, trial)
    else:
        outcome, seen = gangs[world].run(toys.train, task, trial)[0]
    assert outcome.status == "completed", outcome
    assert outcome.updates == UPDATES
    return [(e.metrics["train/loss"], e.metrics["val/loss"], e.metrics["grad_norm"]) for e in seen]


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
@pytest.mark.parametrize("task", [toys.Samples(), toys.Tokens()], ids=["samples", "tokens"])
def test_losses_agree_over_splits(task, reducer, two, four):
    gangs = {2: two, 4: four}
    reference = _losses(task, SPLITS[0], reducer, gangs)
    assert reference[-1][1] < 0.7 * reference[0][1], "the model must learn, or agreement means little"
    for split in SPLITS[1:]:
        for found, right in zip(_losses(task, split, reducer, gangs), reference, strict=True):
            assert found == pytest.approx(right, rel=1e-10), split
