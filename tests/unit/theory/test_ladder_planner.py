"""Whole studies, simulated by benchmarks/study_cost.py: what is found, what it costs, and the laws of the planner."""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.theory.ladder import LadderConfig, Result, Run, around
from orchestrator.theory.ladder_planner import Planner, Rival, Verdict
from orchestrator.theory.ladder_summary import summarise
from orchestrator.theory.local_parabola import Curve

PATH = Path(__file__).resolve().parents[3] / "benchmarks" / "study_cost.py"
SPEC = importlib.util.spec_from_file_location("study_cost", PATH)
assert SPEC is not None
assert SPEC.loader is not None
cost = importlib.util.module_from_spec(SPEC)
sys.modules["study_cost"] = cost
SPEC.loader.exec_module(cost)

SYNTHETIC = {"target": 1.0, "lr_low": 1e-3, "lr_high": 100.0}


def config(seed: int = 0, **changes: Any) -> LadderConfig:
    return cost.quadratic_config(seed, **(SYNTHETIC | changes))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def study() -> tuple[LadderConfig, list[Result]]:
    """One small study of an Adam-like problem on 3 gangs."""
    asked = config(batches=(4, 16, 64))
    return asked, cost.studied(cost.Synthetic(exponent=0.5), asked, 3)[0]


@pytest.mark.parametrize("gangs", [1, 4])
def test_the_quadratics_critical_batch_is_found(gangs: int) -> None:
    problem = cost.Quadratic()
    asked = cost.quadratic_config(1)
    results, _ = cost.studied(problem, asked, gangs)
    found = summarise(asked, results)
    assert found.critical.critical_batch == pytest.approx(cost.CRITICAL, rel=0.25)
    errors = cost.errors_of(found, problem)
    assert len(errors) == 6
    assert max(abs(error) for error in errors.values()) < 0.2
    assert abs(float(np.mean(list(errors.values())))) < 0.06
    assert found.exponent.alpha == pytest.approx(cost.ALPHA, abs=0.2)
    spent = found.search_samples + found.final_samples
    assert spent == sum(one.samples for one in results)
    assert spent < 4.0 * cost.oracle(problem, asked, cost.final_seeds(found))


@pytest.mark.parametrize(
    "problem",
    [
        cost.Synthetic(cliff=0.15, diverges=True),
        cost.Synthetic(symmetric=True, cliff=9.0, above=3.0),
        cost.Synthetic(symmetric=True, cliff=0.25, above=6.0),
        cost.Synthetic(noise=0.05),
        cost.Synthetic(peak=25.0),
        cost.Synthetic(peak=0.25),
    ],
    ids=["cliff", "symmetric", "few reach", "noisy evaluation", "start 18 times too low", "start 6 times too high"],
)
def test_other_valleys_are_found_too(problem: Any) -> None:
    asked = config(seed=2, batches=(4, 16, 64, 256), reference_batch=16)
    results, _ = cost.studied(problem, asked)
    found = summarise(asked, results)
    assert found.critical.critical_batch == pytest.approx(problem.critical, rel=0.25)
    assert max(abs(error) for error in cost.errors_of(found, problem).values()) < 0.15


def test_the_exponent_of_an_adam_like_problem(study: tuple[LadderConfig, list[Result]]) -> None:
    """Between 4 and 16 the planted law rises by ((1 + 28.9 / 4) / (1 + 28.9 / 16))^0.5, an exponent of 0.39."""
    found = summarise(*study).exponent
    assert found.alpha == pytest.approx(0.39, abs=0.15)
    assert "linear" in found.ruled_out


def test_the_same_results_give_the_same_runs_in_any_order(study: tuple[LadderConfig, list[Result]]) -> None:
    asked, results = study
    rng = np.random.default_rng(0)
    for count in range(0, len(results), 7):
        so_far = results[:count]
        runs = [one.run for one in results[count : count + 2]]
        first = Planner(config=asked).next_runs(so_far, runs, 3)
        shuffled = [so_far[i] for i in rng.permutation(count)]
        # Other objects, as of a study that was read from its record.
        reread = [Result(run=replace(one.run), curve=one.curve, ended=one.ended) for one in shuffled]
        assert Planner(config=asked).next_runs(reread, runs[::-1], 3) == first


def test_no_run_is_asked_for_twice_and_a_lost_one_again(study: tuple[LadderConfig, list[Result]]) -> None:
    asked, results = study
    assert len({one.run.key for one in results}) == len(results)
    planner = Planner(config=asked)
    assert isinstance(planner.next_runs(results, [], 3), Verdict)
    search = [one for one in results if one.run.purpose == "search"]
    lost, *kept = [one for one in results if one.run.purpose == "final" and one.run.global_batch == 16][:3]
    again = planner.next_runs([*search, *kept], [], 20)
    assert isinstance(again, tuple)
    assert lost.run.key in {run.key for run in again}
    assert not {one.run.key for one in [*search, *kept]} & {run.key for run in again}


def test_final_seeds_are_others_than_those_of_the_search(study: tuple[LadderConfig, list[Result]]) -> None:
    _, results = study
    search = {one.run.seed for one in results if one.run.purpose == "search"}
    final = {one.run.seed for one in results if one.run.purpose == "final"}
    assert search
    assert final
    assert not search & final


def test_only_final_runs_enter_the_fit(study: tuple[LadderConfig, list[Result]]) -> None:
    asked, results = study
    found = summarise(asked, results)
    assert any(one.run.purpose == "search" for one in results)
    assert found.critical.runs == sum(one.seeds for one in found.batches)
    assert found.critical.censored == 0


def test_learning_rates_share_seeds_and_are_raced_against_the_best(study: tuple[LadderConfig, list[Result]]) -> None:
    asked, results = study
    first = asked.seed_of(16, "search", 0)
    assert len({one.run.lr for one in results if one.run.seed == first}) > 1
    planner = Planner(config=asked)
    probe = Run(global_batch=16, lr=0.123, seed=first, max_samples=9999, purpose="search")
    assert planner.rival([], probe) == Rival()
    bar = planner.rival(results, probe)
    assert bar.samples == pytest.approx(cost.Synthetic().exact[16][0], rel=0.25)
    assert 0.0 < bar.se_log < 0.3
    assert planner.rival(results, replace(probe, purpose="final")).samples == math.inf


def test_the_total_is_kept() -> None:
    asked = config(batches=(4, 16, 64), total_samples=60_000)
    results, verdict = cost.studied(cost.Synthetic(), asked, 2)
    assert verdict.kind == "spent"
    assert "total_samples" in verdict.reason
    # What a run takes is foreseen within its overshoot.
    assert sum(one.samples for one in results) < 1.1 * 60_000


def test_a_target_out_of_reach_ends_the_study() -> None:
    asked = config()
    results, verdict = cost.studied(cost.Synthetic(reachable=False), asked)
    assert verdict.kind == "not reached"
    found = summarise(asked, results)
    assert found.critical.critical_batch is None
    assert all("no learning rate of" in one.reason for one in found.batches)
    # Larger batches than one that is out of reach need more samples still.
    assert max(one.run.global_batch for one in results) <= 8


def test_a_target_that_is_met_at_start_ends_the_study() -> None:
    asked = config(target=1e6)
    results, verdict = cost.studied(replace(cost.Synthetic(), target=1e6), asked)
    assert (len(results), verdict.kind) == (1, "met at start")
    assert summarise(asked, results).verdict == "met at start"


def test_one_batch_is_too_few() -> None:
    asked = config(batches=(16,))
    results, verdict = cost.studied(cost.Synthetic(), asked)
    assert verdict.kind == "spent"
    found = summarise(asked, results)
    assert found.verdict == "too few batches"
    assert found.batches[0].crossing is not None
    assert found.batches[0].crossing.samples == pytest.approx(cost.Synthetic().exact[16][0], rel=0.1)


def test_a_learning_rate_that_fails_in_the_final_runs_is_lowered() -> None:
    asked = config(batches=(16,))
    results, _ = cost.studied(cost.Synthetic(), asked)
    lr = next(one.run.lr for one in results if one.run.purpose == "final")
    search = [one for one in results if one.run.purpose == "search"]
    run = Run(global_batch=16, lr=lr, seed=asked.seed_of(16, "final", 0), max_samples=9999, purpose="final")
    bad = Result(run=run, curve=Curve(samples=np.arange(2.0), values=np.array([2.0, np.inf])), ended="diverged")
    again = Planner(config=asked).next_runs([*search, bad], [], 1)
    assert isinstance(again, tuple)
    assert again[0].purpose == "final"
    assert again[0].lr < 0.92 * lr


def test_a_ladder_is_placed_around_a_noise_scale() -> None:
    assert around(30.0) == (2, 4, 8, 16, 64, 256)
    assert around(1.0) == (1, 2, 8)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"batches": (4, 4)}, "distinct"),
        ({"batches": ()}, "distinct"),
        ({"start_lr": 1e9}, "start_lr = 1000000000.0: must be from lr_low"),
        ({"budget_samples": 3}, "budget_samples = 3: must be a whole number of at least 256"),
        ({"total_samples": 3}, "total_samples = 3"),
        ({"final_least": 1}, "final_least = 1"),
        ({"width": 1.0}, "width = 1.0"),
        ({"target": math.nan}, "target = nan"),
        ({"noise_scale": -1.0}, "noise_scale = -1.0"),
    ],
)
def test_impossible_studies_are_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        config(**change)
