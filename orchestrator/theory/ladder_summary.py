"""What a critical-batch study found: samples-to-target and best learning rate of each batch, and the fits to them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orchestrator.theory.critical_batch import CriticalBatch
from orchestrator.theory.ladder import LadderConfig, Result
from orchestrator.theory.ladder_batch import Bound
from orchestrator.theory.ladder_views import NOT_REACHED, Ladder, final_lr
from orchestrator.theory.lr_exponent import BestLr, LrExponent, lr_exponent
from orchestrator.theory.target_crossing import Crossing

SHAPE_SD = 0.06
"""Of ln(best lr) for valleys whose shape is none of those that are fitted."""


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """What was found at one batch.

    Attributes:
        global_batch: B.
        lr: that the final runs used; None where none reached the target.
        best_lr: where the floor of the valley is expected, by all batches together; `lr` lies below it where a cliff
            is near.
        se_log_lr: standard error of its logarithm.
        crossing: samples-to-target of the expected curve of the final runs, with its error.
        seeds: final runs behind it.
        excess: share of samples that `lr` is expected to cost more than the best learning rate.
        tried: learning rates of the search.
        bounded: ``low`` or ``high`` where the best learning rate may lie beyond that end of the range.
        left_out: whether it was left out of the fit for that: the range decides its samples.
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
    bounded: Bound | None = None
    left_out: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """What a study found.

    Attributes:
        verdict: that of the critical batch; see `critical_batch.CriticalBatch`.
        reason: empty, or why the critical batch is not determined.
        batches: ascending; those that were tried.
        critical: the critical batch with its interval.
        exponent: of the best learning rate against the batch, of batches that lie below the critical one for sure.
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
    the target in it; not to a batch whose best learning rate lies outside of the range. Raced runs tell it nothing, as
    they were stopped because they looked bad.

    >>> config = LadderConfig(batches=(8,), start_lr=0.1, reference_batch=8, lr_low=0.01, lr_high=1.0, target=0.5,
    ...                       budget_samples=1000, total_samples=10_000)
    >>> summarise(config, []).reason
    'not determined: no run reached the target (0 runs at 0 batches). Give more samples, or an easier target'
    """
    ladder = Ladder(config, results)
    left_out = ladder.left_out()
    batches = tuple(_batch(ladder, batch, left_out) for batch, view in ladder.views.items() if view.results)
    critical = ladder.fit()
    return StudyResult(
        verdict=critical.verdict,
        reason=critical.reason,
        batches=batches,
        critical=critical,
        exponent=_exponent(ladder, critical),
        search_samples=sum(one.samples for one in results if one.run.purpose == "search"),
        final_samples=sum(one.samples for one in results if one.run.purpose == "final"),
    )


def _exponent(ladder: Ladder, critical: CriticalBatch) -> LrExponent:
    """Of the batches that lie below the critical one for sure, by what their own runs tell.

    Where others have a say in a batch's best learning rate, it lies on their laws by construction.
    """
    known = {b: view.known for b, view in ladder.views.items() if ladder.bounded(b) is None}
    points = [
        BestLr(global_batch=b, lr=math.exp(one.log_lr), se_log=math.hypot(one.se_log, SHAPE_SD))
        for b, one in known.items()
        if one is not None
    ]
    up_to = critical.critical_batch
    if up_to is None and critical.verdict in ("perfect scaling", "too noisy"):
        up_to = critical.low
    if up_to is not None:
        return lr_exponent(points, critical_batch=up_to)
    batches = tuple(point.global_batch for point in points)
    reason = "not determined: no batch is known to lie below the critical batch, above which no power law holds"
    return LrExponent(batches=(), beyond=batches, reason=reason, confidence=critical.confidence)


def _batch(ladder: Ladder, batch: int, left_out: Collection[int]) -> BatchResult:
    view = ladder.views[batch]
    found = BatchResult(global_batch=batch, tried=len(view.tried))
    if view.met_at_start:
        return dataclasses.replace(found, reason="the target is met at sample 0")
    if view.best is None:
        way = view.why_lost
        reason = f"no learning rate of {found.tried} reached the target. {NOT_REACHED[way]}"
        return dataclasses.replace(found, reason=reason, bounded=way if way in ("low", "high") else None)
    lr, valley = final_lr(view), ladder.valley(batch)
    crossing = view.final_crossings.get(lr) if lr is not None else None
    reason = "no final run yet"
    if crossing is not None:
        reason = crossing.reason
    elif view.final_crossings:
        reason = f"the final runs at {len(view.final_crossings)} learning rates did not reach the target"
    return dataclasses.replace(
        found,
        lr=lr,
        best_lr=math.exp(valley.mean),
        se_log_lr=valley.sd,
        crossing=crossing,
        seeds=crossing.seeds if crossing is not None else 0,
        excess=ladder.excess(batch),
        bounded=ladder.bounded(batch),
        left_out=batch in left_out,
        reason=reason,
    )
