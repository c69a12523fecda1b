"""What a critical-batch study found: samples-to-target and best learning rate of each batch, and the fits to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.theory.critical_batch import CriticalBatch, fit
from orchestrator.theory.ladder import LadderConfig, Result
from orchestrator.theory.ladder_batch import FAILURES, BatchRuns, batch_runs
from orchestrator.theory.ladder_rate import guess_lr
from orchestrator.theory.lr_exponent import BestLr, LrExponent, lr_exponent
from orchestrator.theory.observation import Observation
from orchestrator.theory.target_crossing import Crossing

SHAPE_SD = 0.06
"""Of ln(best lr) for valleys whose shape is none of those that are fitted."""


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """What was found at one batch.

    Attributes:
        global_batch: B.
        lr: that the final runs used; None where none reached the target.
        best_lr: where the floor of the valley is expected; `lr` lies below it where a cliff is near.
        se_log_lr: standard error of its logarithm.
        crossing: samples-to-target of the expected curve of the final runs, with its error.
        seeds: final runs behind it.
        excess: share of samples that `lr` is expected to cost more than the best learning rate.
        tried: learning rates of the search.
        reason: empty, or why there is no crossing.
    """

    global_batch: int
    lr: float | None = None
    best_lr: float | None = None
    se_log_lr: float | None = None
    crossing: Crossing | None = None
    seeds: int = 0
    excess: float | None = None
    tried: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """What a study found.

    Attributes:
        verdict: that of the critical batch; see `critical_batch.CriticalBatch`.
        reason: empty, or why the critical batch is not determined.
        batches: ascending; those that were tried.
        critical: the critical batch with its interval.
        exponent: of the best learning rate against the batch, up to the critical batch.
        search_samples: trained by search runs.
        final_samples: trained by final runs.
    """

    verdict: str
    reason: str
    batches: tuple[BatchResult, ...]
    critical: CriticalBatch
    exponent: LrExponent
    search_samples: float
    final_samples: float


def summarise(config: LadderConfig, results: Sequence[Result]) -> StudyResult:
    """What is known from the results so far.

    The critical batch is fitted to final runs, and to the budget of a batch whose learning rates all failed to reach
    the target in it; raced runs tell it nothing, as they were stopped because they looked bad.

    >>> config = LadderConfig(batches=(8,), start_lr=0.1, reference_batch=8, lr_low=0.01, lr_high=1.0, target=0.5,
    ...                       budget_samples=1000, total_samples=10_000)
    >>> summarise(config, []).reason
    'not determined: no run reached the target (0 runs at 0 batches). Give more samples, or an easier target'
    """
    views = [batch_runs(config, batch, results) for batch in sorted(config.batches)]
    views = [view for view in views if view.results]
    batches = tuple(_batch(view, [other for other in views if other is not view]) for view in views)
    critical = fit_critical(views)
    points = [
        BestLr(global_batch=one.global_batch, lr=one.best_lr, se_log=math.hypot(one.se_log_lr, SHAPE_SD))
        for one in batches
        if one.best_lr is not None and one.se_log_lr is not None
    ]
    return StudyResult(
        verdict=critical.verdict,
        reason=critical.reason,
        batches=batches,
        critical=critical,
        exponent=lr_exponent(points, critical_batch=critical.critical_batch),
        search_samples=sum(one.samples for one in results if one.run.purpose == "search"),
        final_samples=sum(one.samples for one in results if one.run.purpose == "final"),
    )


def fit_critical(views: Sequence[BatchRuns]) -> CriticalBatch:
    """The critical batch by final runs and batches out of reach."""
    return fit(observation for view in views for observation in _observations(view))


def final_lr(view: BatchRuns) -> float | None:
    """The learning rate of the final runs, the lowest if higher ones failed; the best one if all that may fail did.

    None where there is none yet, or none that reaches the target.
    """
    lrs = sorted({one.run.lr for one in view.results if one.run.purpose == "final"})
    holding = [lr for lr in lrs if not view.failed(lr)]
    if holding or len(lrs) < FAILURES:
        return min(holding, default=None)
    reached = {lr: samples for lr in lrs if (samples := view.final_crossings[lr].samples)}
    return min(reached, key=lambda lr: reached[lr], default=None)


def _observations(view: BatchRuns) -> tuple[Observation, ...]:
    if view.met_at_start:
        return (Observation(global_batch=view.global_batch, samples=0.0),)
    lr = final_lr(view)
    if lr is not None:
        return view.final_crossings[lr].observations(view.global_batch)
    spent = [one.samples for one in view.results if one.ended == "budget"]
    if view.best is not None or not spent:
        return ()
    return (Observation(global_batch=view.global_batch, samples=max(spent), censored=True),)


def _batch(view: BatchRuns, others: Sequence[BatchRuns]) -> BatchResult:
    lr = final_lr(view)
    blank = BatchResult(global_batch=view.global_batch, tried=len(view.tried))
    if view.met_at_start:
        return BatchResult(global_batch=view.global_batch, tried=blank.tried, reason="the target is met at sample 0")
    if view.best is None:
        reason = f"no learning rate of {blank.tried} reached the target"
        return BatchResult(global_batch=view.global_batch, tried=blank.tried, reason=reason)
    known = [other.known for other in others]
    points = [one for one in known if one is not None]
    valley = view.alone
    if points:
        valley = view.valley(guess_lr(points, view.global_batch, view.config.noise_scale))
    crossing = view.final_crossings.get(lr) if lr is not None else None
    return BatchResult(
        global_batch=view.global_batch,
        lr=lr,
        best_lr=math.exp(valley.mean),
        se_log_lr=valley.sd,
        crossing=crossing,
        seeds=crossing.seeds if crossing is not None else 0,
        excess=valley.best()[1],
        tried=blank.tried,
        reason=crossing.reason if crossing is not None else "no final run yet",
    )
