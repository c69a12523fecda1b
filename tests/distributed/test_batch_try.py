"""Tries of a micro batch on two ranks with memory of their own: all ranks agree, and nobody waits for a dead one."""

from __future__ import annotations

from typing import Any

import pytest
import toys
from test_memory import Cramped

from orchestrator.config.trial import TrialSpec
from orchestrator.theory.batch_finder import BatchFinder, Order, Sight, find_micro_batch
from orchestrator.training.batch_try import try_batch
from orchestrator.training.memory_ceiling import with_micro_batch
from orchestrator.training.registry import load_task

REDUCERS = pytest.mark.parametrize("reducer", ["flat", "ddp"])
HUGE = 1e15


def _try(group: Any, phase: str, limits: Any, trial: TrialSpec, order: Order, changes: dict[str, Any]) -> Any:
    task = Cramped(phase, limits, since=0, **changes)
    sight = try_batch(with_micro_batch(trial, order.micro_batch), task, group, order, room_bytes=HUGE)
    return sight, sum(task.sizes)


def _fill(group: Any, trial: TrialSpec, order: Order, rooms: list[float]) -> Sight:
    task = load_task("digits", {"hidden": 2048, "depth": 2})
    return try_batch(with_micro_batch(trial, order.micro_batch), task, group, order, room_bytes=rooms[group.rank])


@REDUCERS
@pytest.mark.parametrize("phase", ["loader", "forward", "early", "late"])
def test_two_ranks_with_different_limits_agree(phase: str, reducer: str, two: Any) -> None:
    # mosaicml/composer#2117: rank 1 limit 40, rank 0 limit 64, start 128, halving: both end at 32
    trial = toys.spec((16, 1, 2), reducer=reducer)

    def on_both(order: Order) -> list[Sight]:
        return [sight for sight, _ in two.run(_try, phase, (64, 40), trial, order, {})]

    found = find_micro_batch(on_both, BatchFinder(cap=150, start=128, refine=False, eval_batch=8))
    assert (found.verdict, found.micro_batch) == ("found", 32)
    assert [one.order.micro_batch for one in found.tries] == [128, 64, 32]
    assert found.tries[1].error.startswith("rank 1: ")
    assert found.tries[0].error.startswith("rank 0: ")


@REDUCERS
def test_no_memory_for_the_evaluation_on_one_rank_lowers_its_batch_on_both(reducer: str, two: Any) -> None:
    trial, seen = toys.spec((16, 1, 2), reducer=reducer), []

    def on_both(order: Order) -> list[Sight]:
        answers = two.run(_try, "forward", (999, 999), trial, order, {"eval_limits": (99, 20)})
        seen.append(sum(trained for _, trained in answers))
        return [sight for sight, _ in answers]

    found = find_micro_batch(on_both, BatchFinder(cap=16, start=16, eval_batch=64))
    assert (found.micro_batch, found.eval_batch) == (16, 16)
    assert seen == [2 * 3 * 16, 0, 0]  # updates are not repeated where only the evaluation is


def test_an_error_of_the_task_is_no_want_of_memory(two: Any) -> None:
    sights = two.run(_broken, toys.spec((16, 1, 2)))
    assert [(sight.fits, sight.out_of_memory) for sight in sights] == [(False, False), (True, False)]
    assert "ZeroDivisionError: on purpose" in sights[0].message


class Broken(toys.Tokens):
    def loss(self, model: Any, batch: Any) -> Any:
        if toys.rank() == 0:
            raise ZeroDivisionError("on purpose")
        return super().loss(model, batch)


def _broken(group: Any, trial: TrialSpec) -> Sight:
    order = Order(micro_batch=16, eval_batch=8, updates=3)
    return try_batch(trial, Broken(), group, order, room_bytes=HUGE)


def test_a_process_is_kept_within_its_room_and_is_sound_afterwards(two: Any) -> None:
    trial, order = toys.spec((16, 1, 2)), Order(micro_batch=64, eval_batch=8, updates=3)
    peaks = [sight.peak_bytes for sight in two.run(_fill, trial, order, [HUGE, HUGE])]
    sights = two.run(_fill, trial, order, [0.5 * peaks[0], HUGE])
    assert any((sight.fits, sight.out_of_memory) == (False, True) for sight in sights)
    assert all(sight.fits for sight in two.run(_fill, trial, order, [HUGE, HUGE]))
