"""The scheduler asks the policies, and tells the gangs before it tells Tune."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler

from orchestrator.config.load import spec_from_dict
from orchestrator.config.trial import Target
from orchestrator.search.objective import Objective
from orchestrator.search.race import Asha, Race
from orchestrator.search.scheduler import EarlyStopping, early_stopping

STOP, CONTINUE = TrialScheduler.STOP, TrialScheduler.CONTINUE


class Gangs:
    """Takes cancellations; trials in `ended` are over already."""

    def __init__(self, *ended: str) -> None:
        self.ended, self.cancelled = ended, [("", "")][:0]

    def cancel(self, trial: str, by: str | None) -> bool:
        self.cancelled.append((trial, str(by)))
        return trial not in self.ended


def trial(name: str, phase: str = "search") -> Any:
    return SimpleNamespace(config={"trial": name, "info": {"phase": phase}})


def result(samples: int, metric: float | None, *, seconds: float = 1.0, batch: int = 64, **more: Any) -> dict[str, Any]:
    return {"samples_seen": samples, "metric": metric, "train_seconds": seconds, "global_batch": batch, **more}


def told(scheduler: EarlyStopping, name: str, said: dict[str, Any], phase: str = "search") -> str:
    return scheduler.on_trial_result(None, trial(name, phase), said)


@pytest.mark.parametrize(("mode", "values"), [("min", (0.1, 0.2, 0.9)), ("max", (0.9, 0.8, 0.1))])
def test_asha_stops_the_worst_and_tells_its_gang(mode: Any, values: tuple[float, float, float]) -> None:
    gangs = Gangs()
    scheduler = EarlyStopping(asha=Asha(rungs=[1000], reduction=3, mode=mode), cancel=gangs.cancel)
    assert [told(scheduler, f"t{i}", result(1024, v)) for i, v in enumerate(values)] == [CONTINUE, CONTINUE, STOP]
    assert gangs.cancelled == [("t2", "asha")]


def test_a_trial_that_has_ended_by_itself_is_left_to_its_own_end() -> None:
    gangs = Gangs("t2")
    scheduler = EarlyStopping(asha=Asha(rungs=[1000], reduction=3, mode="min"), cancel=gangs.cancel)
    assert {told(scheduler, f"t{i}", result(1000, i / 10)) for i in range(3)} == {CONTINUE}
    assert gangs.cancelled == [("t2", "asha")]


def test_repeats_and_ends_are_not_judged() -> None:
    gangs = Gangs()
    scheduler = EarlyStopping(asha=Asha(rungs=[1000], reduction=2, mode="min"), cancel=gangs.cancel)
    told(scheduler, "best", result(1000, 0.1))
    assert told(scheduler, "seed1", result(1000, 0.9), phase="repeat") == CONTINUE
    assert told(scheduler, "late", result(1000, 0.9, done=True)) == CONTINUE
    assert gangs.cancelled == []


def test_a_metric_that_is_absent_is_not_ranked_but_loses_the_race() -> None:
    target = Target(metric="val/loss", value=0.5, mode="min")
    scheduler = EarlyStopping(
        asha=Asha(rungs=[1000], reduction=2, mode="min"), race=Race(), target=target, cancel=Gangs().cancel
    )
    assert told(scheduler, "good", result(2000, 0.4)) == CONTINUE
    assert told(scheduler, "odd", result(1000, None)) == CONTINUE
    assert told(scheduler, "odd", result(2000, None)) == STOP


def scheduler_for(kind: str, gangs: Gangs) -> EarlyStopping:
    spec = spec_from_dict(
        {
            "task": {"name": "digits"},
            "objective": {"kind": kind, "metric": "val/loss", "target": 0.5},
            "search": {"early_stopping": "race"},
        }
    )
    target = Target(metric="val/loss", value=0.5, mode="min")
    objective = Objective(kind=spec.objective.kind, metric="val/loss", mode="min", target=target)
    return early_stopping(spec, objective, largest_batch=64, cancel=gangs.cancel)


def test_a_race_against_time_counts_seconds_and_one_against_samples_counts_samples() -> None:
    """A smaller model may need more samples at a batch, and still be there first."""
    for kind, small in (("time_to_target", CONTINUE), ("samples_to_target", STOP), ("updates_and_samples", STOP)):
        scheduler = scheduler_for(kind, Gangs())
        assert told(scheduler, "large", result(4000, 0.4, seconds=10.0)) == CONTINUE
        assert told(scheduler, "small", result(6000, 0.6, seconds=2.0)) == small, kind
    scheduler = scheduler_for("time_to_target", Gangs())
    told(scheduler, "fast", result(4000, 0.4, seconds=2.0))
    assert told(scheduler, "slow", result(2000, 0.6, seconds=3.0)) == STOP


def test_an_evaluation_told_again_gets_the_same_answer_and_counts_once() -> None:
    """A light actor that was started again tells everything from the start."""
    gangs = Gangs()
    asha = Asha(rungs=[1000], reduction=2, mode="min")
    scheduler = EarlyStopping(asha=asha, cancel=gangs.cancel)
    good = {"samples_seen": 1000, "metric": 0.1, "global_batch": 8, "train_seconds": 1.0}
    for _ in range(3):
        assert scheduler.on_trial_result(None, trial("good"), good) == "CONTINUE"
    for _ in range(2):
        assert scheduler.on_trial_result(None, trial("bad"), {**good, "metric": 0.9}) == "STOP"
    assert gangs.cancelled == [("bad", "asha")] * 2


def test_a_fresh_scheduler_that_saw_the_record_decides_as_the_old_one() -> None:
    gangs = Gangs()
    scheduler = EarlyStopping(asha=Asha(rungs=[1000], reduction=2, mode="min"), cancel=gangs.cancel)
    at = {"samples_seen": 1000, "global_batch": 8, "train_seconds": 1.0}
    scheduler.judge_again("good", "search", {**at, "metric": 0.1})
    scheduler.judge_again("bad", "search", {**at, "metric": 0.9})
    assert not gangs.cancelled, "the record is only read"
    assert scheduler.on_trial_result(None, trial("bad"), {**at, "metric": 0.9}) == "STOP", "it was not told yet"
    assert scheduler.on_trial_result(None, trial("worse"), {**at, "metric": 2.0}) == "STOP"


def test_rungs_start_at_the_largest_batch() -> None:
    spec = spec_from_dict(
        {
            "task": {"name": "digits"},
            "budget": {"samples": 20000, "eval_every": 1000},
            "search": {"early_stopping": "asha", "reduction": 2},
        }
    )
    objective = Objective(kind="best_metric", metric="val/loss", mode="min")
    scheduler = early_stopping(spec, objective, largest_batch=4096, cancel=Gangs().cancel)
    assert told(scheduler, "small", result(1000, 0.1, batch=16)) == CONTINUE
    assert told(scheduler, "bad", result(1000, 0.9, batch=16)) == CONTINUE, "no rung below the largest batch"
    told(scheduler, "small", result(5000, 0.1, batch=16))
    assert told(scheduler, "large", result(8192, 0.9, batch=4096)) == STOP
