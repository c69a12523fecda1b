"""Where the range of learning rates binds, what stands in the way of the target, and what the exponent may use."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import study_cost as cost

from orchestrator.theory.ladder import LadderConfig, Result, Run
from orchestrator.theory.ladder_planner import Planner
from orchestrator.theory.ladder_summary import StudyResult, summarise
from orchestrator.theory.ladder_views import Ladder, final_lr
from orchestrator.theory.local_parabola import Curve


def config(**changes: Any) -> LadderConfig:
    return cost.quadratic_config(0, target=1.0, **changes)  # type: ignore[no-any-return]


def found_in(problem: Any, **changes: Any) -> tuple[StudyResult, Any]:
    asked = config(**changes)
    results, verdict = cost.studied(problem, asked)
    return summarise(asked, results), verdict


def planted(batches: tuple[int, ...], critical: float, peak: float = 2.0) -> Any:
    """A problem with a ladder of its own."""
    problem = cost.Synthetic()
    exact = {b: (1000.0 * (1 + b / critical), peak / (1 + critical / b)) for b in batches}
    object.__setattr__(problem, "exact", exact)
    return problem


@pytest.mark.parametrize("lr_high", [1.2, 0.9, 0.6])
def test_batches_whose_best_learning_rate_lies_beyond_the_range_decide_nothing(lr_high: float) -> None:
    """With a best rate that is sought within the range, the critical batch came out as 25, 21 and 14."""
    found, _ = found_in(cost.Synthetic(), lr_high=lr_high)
    by_batch = {one.global_batch: one for one in found.batches}
    assert by_batch[256].bounded == "high"
    assert by_batch[256].left_out
    assert by_batch[256].excess > 0.2
    assert by_batch[2].bounded is None
    assert 256 not in found.exponent.batches + found.exponent.beyond
    assert found.critical.low is None or found.critical.low < cost.CRITICAL
    assert found.critical.high is None or found.critical.high > cost.CRITICAL


def test_a_wide_range_binds_nowhere() -> None:
    found, _ = found_in(cost.Synthetic())
    assert [one.bounded for one in found.batches] == [None] * 6
    assert not any(one.left_out for one in found.batches)


def test_a_reference_batch_that_the_range_keeps_from_the_target_does_not_end_the_study() -> None:
    """Learning rates from 0.3 are too high for batch 2, not for larger ones."""
    found, verdict = found_in(cost.Synthetic(), reference_batch=2, start_lr=1.0, lr_low=0.3)
    assert verdict.kind == "done"
    assert found.critical.critical_batch == pytest.approx(cost.CRITICAL, rel=0.25)
    lost = found.batches[0]
    assert lost.bounded == "low"
    assert "allow lower ones" in lost.reason


def test_runs_that_all_diverge_are_told_so() -> None:
    class Broken(cost.Synthetic):  # type: ignore[misc, name-defined]
        """Not a number, always."""

        def evaluations(self, global_batch: int, lr: float, seed: int) -> Any:
            for t, _ in super().evaluations(global_batch, lr, seed):
                yield t, math.nan

    found, verdict = found_in(Broken())
    assert verdict.kind == "not reached"
    assert verdict.reason.startswith("no run reached the target. Every run diverged")
    assert "Every run diverged" in found.critical.reason
    assert "Give more samples" not in verdict.reason + found.critical.reason


def test_no_exponent_where_no_batch_is_known_to_lie_below_the_critical_one() -> None:
    batches = (256, 512, 1024)
    found, _ = found_in(
        planted(batches, 5.0), batches=batches, reference_batch=256, budget_samples=400_000, total_samples=40_000_000
    )
    assert found.critical.verdict == "beyond critical"
    assert found.exponent.alpha is None
    assert found.exponent.ruled_out == ()
    assert found.exponent.reason.startswith("not determined: no batch is known to lie below")


def test_in_perfect_scaling_every_batch_below_the_bound_tells_the_exponent() -> None:
    found, _ = found_in(planted((2, 4, 8, 16, 64, 256), 1e5, peak=2e3), lr_high=100.0)
    assert found.critical.verdict == "perfect scaling"
    assert max(found.exponent.batches) <= found.critical.low


def test_the_exponent_is_made_of_each_batchs_own_runs() -> None:
    asked = config()
    results, _ = cost.studied(cost.Synthetic(), asked)
    found, ladder = summarise(asked, results), Ladder(asked, results)
    used = found.exponent.batches
    assert len(used) >= 3
    x = np.log(used)
    y = np.array([ladder.views[b].alone.mean for b in used])
    weight = 1.0 / np.hypot([ladder.views[b].alone.sd for b in used], 0.06)
    assert found.exponent.alpha == pytest.approx(np.polyfit(x, y, 1, w=weight)[0], rel=1e-6)


def test_a_final_learning_rate_that_fails_at_the_end_of_the_range_is_reported() -> None:
    asked = config(batches=(16,), lr_low=0.7, start_lr=0.75, reference_batch=16)
    results, _ = cost.studied(cost.Synthetic(), asked)
    search = [one for one in results if one.run.purpose == "search"]
    least = next(one for one in results if one.run.purpose == "final")
    finals = []
    for number in range(asked.final_least):
        run = Run(global_batch=16, lr=0.7, seed=asked.seed_of(16, "final", number), max_samples=99_999, purpose="final")
        finals.append(replace(least, run=run))
    curve = Curve(samples=np.array([0.0, 16.0]), values=np.array([2.0, math.inf]))
    finals[-1] = Result(run=finals[-1].run, curve=curve, ended="diverged")
    every = [*search, *finals]
    ladder = Ladder(asked, every)
    assert ladder.views[16].failed(0.7)
    assert ladder.bounded(16) == "low"
    assert final_lr(ladder.views[16]) is None
    (told,) = summarise(asked, every).batches
    assert told.bounded == "low"
    assert "no final run yet" not in told.reason
    # Nothing is left to try.
    assert not isinstance(Planner(config=asked).next_runs(every, [], 1), tuple)


@pytest.mark.parametrize("batches", [(8,), (8, 64)])
def test_no_seed_is_spent_where_batches_are_too_few(batches: tuple[int, ...]) -> None:
    found, verdict = found_in(cost.Synthetic(seed_sd=0.15), batches=batches)
    assert [one.seeds for one in found.batches] == [config().final_least] * len(batches)
    assert "fewer than 3 batches" in verdict.reason
