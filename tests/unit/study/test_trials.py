"""A study's runs as its record tells them: where the verdict on each falls, and that it depends on no clock."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from orchestrator.study.noise import noise_at_target
from orchestrator.study.trials import Goal, StudyTrial, trials_of
from orchestrator.theory.ladder import Run
from orchestrator.theory.ladder_planner import Rival
from orchestrator.theory.ladder_summary import BatchResult
from orchestrator.theory.target_crossing import Crossing

GOAL = Goal(metric="val/loss", value=0.5, mode="min")
RUN = Run(global_batch=8, lr=0.1, seed=3, max_samples=2000, purpose="search", overshoot=1.4)


def evaluation(samples: int, value: float, **metrics: float) -> dict[str, Any]:
    return {"samples_seen": samples, "updates": samples // 8, "metrics": {"val/loss": value, **metrics}}


def falling(until: int, needed: float = 500.0) -> list[dict[str, Any]]:
    """Evaluations of a curve that meets the target at `needed` samples."""
    return [evaluation(t, 0.5 * math.exp(1.0 - t / needed)) for t in range(0, until + 1, 20)]


def trial(evaluations: list[dict[str, Any]], status: str = "running", **changes: Any) -> StudyTrial:
    fields: dict[str, Any] = {"trial": "t0007", "run": RUN, "rival": Rival(), "phase": "search"}
    return StudyTrial(**(fields | changes), evaluations=evaluations, status=status)


def test_a_run_counts_up_to_the_evaluation_that_decided_it() -> None:
    decided = trial(falling(720)).result(GOAL)
    assert decided is not None
    assert decided.ended == "overshot"
    assert decided.samples == pytest.approx(700, abs=20)
    for later in (falling(800), falling(1900)):
        again = trial(later, "stopped").result(GOAL)
        assert again is not None
        assert (again.ended, again.samples) == (decided.ended, decided.samples)
        assert list(again.curve.values) == list(decided.curve.values)


def test_a_run_under_way_has_no_result() -> None:
    assert trial(falling(600)).result(GOAL) is None
    assert trial([]).result(GOAL) is None


def test_a_run_that_ends_short_of_the_target_spent_its_budget() -> None:
    final = dataclasses.replace(RUN, purpose="final")
    found = trial(falling(2000, needed=9000.0), "completed", run=final).result(GOAL)
    assert found is not None
    assert (found.ended, found.samples) == ("budget", 2000)


def test_a_search_run_that_cannot_win_any_more_is_raced_and_a_final_one_is_not() -> None:
    rival = Rival(samples=200.0, se_log=0.1)
    raced = trial(falling(400), rival=rival).result(GOAL)
    assert raced is not None
    assert raced.ended == "raced"
    assert trial(falling(400), rival=rival, run=dataclasses.replace(RUN, purpose="final")).result(GOAL) is None


def test_a_diverged_run_ends_in_infinity_even_without_an_evaluation() -> None:
    for evaluations in ([], falling(100)):
        one = trial(evaluations, "diverged")
        one.outcome = {"samples_seen": 104}
        found = one.result(GOAL)
        assert found is not None
        assert found.ended == "diverged"
        assert found.samples == 104
        assert found.curve.values[-1] == math.inf


def test_a_metric_that_was_never_finite_is_a_divergence() -> None:
    other = [{"samples_seen": t, "metrics": {"val/other": 1.0}} for t in (0, 100)]
    assert trial(other).result(GOAL) is None
    ended = trial(other, "completed")
    ended.outcome = {"samples_seen": 2000}
    found = ended.result(GOAL)
    assert found is not None
    assert (found.ended, found.samples) == ("diverged", 2000)


def test_a_failed_run_is_no_result() -> None:
    assert trial(falling(700), "failed").result(GOAL) is None


def test_the_record_tells_a_run_and_its_rival_again() -> None:
    for rival in (Rival(), Rival(samples=321.5, se_log=0.07)):
        one = trial(falling(100), rival=rival)
        started = {"event": "trial_started", "trial": one.trial, "key": "k", **one.info()}
        events = [started, *({"event": "evaluation", "trial": one.trial, **e} for e in one.evaluations)]
        ended = {"event": "trial_ended", "trial": one.trial, "status": "stopped", "outcome": {"samples_seen": 120}}
        (found,) = trials_of([{"event": "sweep_started"}, *events, ended])
        assert (found.run, found.rival, found.phase, found.status) == (one.run, rival, "search", "stopped")
        assert [e["samples_seen"] for e in found.evaluations] == [e["samples_seen"] for e in one.evaluations]
        assert found.samples == 120


def test_the_noise_scale_is_that_of_the_last_evaluation_that_tells_it() -> None:
    ends = {"noise_scale_low": 3.0, "noise_scale_high": 9.0}
    one = trial([evaluation(0, 1.0), evaluation(40, 0.9, noise_scale=5.0, **ends), evaluation(80, 0.8)])
    found = one.noise()
    assert found is not None
    assert (found.value, found.low, found.high, found.samples) == (5.0, 3.0, 9.0, 40)
    assert one.noise(until=20) is None
    assert trial([*one.evaluations, evaluation(100, 0.7)]).noise() is None, "it is of another time"


def of_noise(trace: float, g2: float, error: float = 0.1) -> dict[str, float]:
    parts = {
        "trace": trace,
        "trace_se": error * trace,
        "g2": g2,
        "g2_se": error * 2.0,
        "correlation": 0.0,
        "blocks": 20,
    }
    return {f"noise_scale_{name}": value for name, value in parts.items()}


def at_target(*runs: list[dict[str, Any]], samples: float) -> dict[str, Any] | None:
    final = dataclasses.replace(RUN, purpose="final")
    crossing = Crossing(verdict="crossed", samples=samples, seeds=len(runs), ended=7000.0, confidence=0.95)
    trials = [trial(run, "stopped", run=final, phase="final") for run in runs]
    return noise_at_target(trials, BatchResult(global_batch=8, lr=0.1, crossing=crossing))


def test_the_noise_scale_at_the_target_is_of_there_or_not_told() -> None:
    early = [evaluation(t, 1.0 - t / 1e4, **(of_noise(10.0, 2.0) if t <= 300 else {})) for t in range(0, 7001, 100)]
    assert at_target(early, early, samples=5000.0) is None
    found = at_target(early, early, samples=350.0)
    assert found is not None
    assert found["value"] == pytest.approx(5.0)


def test_seeds_share_their_parts_also_where_one_alone_tells_nothing() -> None:
    """Means first, then the ratio: seeds of a small |G|^2 count, and each has an error of its own."""
    seeds = [(40.0, 2.0), (40.0, 2.4), (40.0, 0.4), (40.0, 1.2)]
    found = at_target(*([evaluation(990, 0.5, **of_noise(trace, g2, 0.3))] for trace, g2 in seeds), samples=1000.0)
    assert found is not None
    assert (found["value"], found["seeds"]) == (pytest.approx(40.0 / 1.5), 4)
    same = at_target(*[[evaluation(990, 0.5, **of_noise(40.0, 2.0))]] * 3, samples=1000.0)
    assert same is not None
    assert same["low"] < 0.95 * 20.0 < 20.0 < 1.05 * 20.0 < same["high"], "though the three agree"
    assert at_target([evaluation(990, 0.5, **of_noise(40.0, 0.1))], samples=1000.0) is None
