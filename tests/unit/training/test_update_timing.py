"""Timed updates are a trial's own, and their parts add up."""

from __future__ import annotations

import pytest
from test_memory_prediction import spec_of

from orchestrator.tasks.digits import Digits
from orchestrator.training.group import Solo
from orchestrator.training.records import Failure
from orchestrator.training.registry import load_task
from orchestrator.training.task import Sum
from orchestrator.training.update_timing import PARTS, UpdateTimes, time_updates


@pytest.mark.parametrize("accumulation", [1, 3])
def test_the_parts_of_an_update_add_up(accumulation: int) -> None:
    spec = spec_of(micro=64, accumulation=accumulation, hidden=512, depth=2)
    found = time_updates(spec, load_task("digits", spec.task.options), Solo(), updates=8, warmup=2)
    assert isinstance(found, UpdateTimes)
    assert len(found.step_s) == 8
    assert min(found.step_s) > 0
    assert tuple(found.shares) == PARTS
    assert all(0 < share < 1 for share in found.shares.values())
    assert 0.5 < sum(found.shares.values()) <= 1.0


def test_a_failure_is_told() -> None:
    class Broken(Digits):
        def loss(self, model: object, batch: object) -> Sum:
            raise ZeroDivisionError("no loss")

    found = time_updates(spec_of(), Broken(), Solo(), updates=2)
    assert isinstance(found, Failure)
    assert (found.phase, found.message) == ("forward", "no loss")
