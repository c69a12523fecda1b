"""What a study tells in sentences: the answer, and what weakens it."""

from __future__ import annotations

import math

from orchestrator.config.optimizers import is_adaptive
from orchestrator.report import formats
from orchestrator.theory.critical_batch import CriticalBatch
from orchestrator.theory.ladder_planner import Verdict
from orchestrator.theory.ladder_summary import BatchResult, StudyResult
from orchestrator.theory.lr_exponent import LrExponent

NOTHING = 5.0
"""At so many critical batches the updates are within a fifth of the fewest: S = Smin (1 + Bcrit / B)."""
COSTLY = 0.05


def sentence(critical: CriticalBatch, verdict: Verdict) -> str:
    """The answer for somebody who asks how many devices pay."""
    value = critical.critical_batch
    if value is None or critical.low is None or critical.high is None or critical.cbs20.value is None:
        return f"The critical batch is {critical.reason or f'not determined: {verdict.reason}'}"
    return (
        f"Up to a global batch of about {formats.count(critical.cbs20.value)} more devices pay nearly in full: at most "
        f"20 % more samples for proportionally fewer updates. At the critical batch, {formats.count(value)} "
        f"({formats.count(critical.low)} to {formats.count(critical.high)} at {100 * critical.confidence:g} %), the "
        "target takes twice the fewest samples, and twice the fewest updates. Beyond "
        f"{formats.count(NOTHING * value)} no number of devices saves more than a sixth of the updates."
    )


def warnings_of(found: StudyResult, optimizer: str) -> list[str]:
    """What weakens the estimates, and which rules of thumb they contradict."""
    warnings = list(found.critical.warnings)
    for one in found.batches:
        if one.bounded is not None:
            warnings.append(_of_range(one))
        elif one.excess is not None and one.excess > COSTLY:
            warnings.append(
                f"batch {one.global_batch}: its learning rate may cost {one.excess:.0%} more samples than the best one"
            )
    return [*warnings, *_of_rules(found.exponent, optimizer), *_of_stretch(found)]


def _of_range(one: BatchResult) -> str:
    """What the range of learning rates does to a batch."""
    side = "above the largest" if one.bounded == "high" else "below the least"
    if one.best_lr is None:
        return f"batch {one.global_batch}: {one.reason}. Widen space.lr.base"
    what = "it was left out of the fit" if one.left_out else "it stays in the fit"
    return (
        f"batch {one.global_batch}: the best learning rate may lie {side} of space.lr.base, so that it may need "
        f"{-math.expm1(-(one.excess or 0.0)):.0%} fewer samples than were measured; {what}. Widen space.lr.base"
    )


def _of_stretch(found: StudyResult) -> list[str]:
    """Where the measured power law must not be stretched: beyond the batches that it was measured on."""
    law = found.exponent
    if law.alpha is None or law.lr_at_one is None or not law.beyond:
        return []
    best = {one.global_batch: one.best_lr for one in found.batches}
    off = []
    for batch in law.beyond:
        if (lr := best.get(batch)) is not None:
            factor = law.lr_at_one * math.pow(batch, law.alpha) / lr
            off.append(f"{factor:.2g} times the best at {batch}")
    told = f": it gives {', '.join(off)}" if off else ""
    return [
        f"the exponent is measured over batches {law.batches[0]} to {law.batches[-1]}, below the critical batch; do "
        f"not stretch it, nor any rule tuned there, to {', '.join(map(str, law.beyond))}{told}"
    ]


def _of_rules(exponent: LrExponent, optimizer: str) -> list[str]:
    """Where the measured exponent speaks against the rule that is usual for the optimizer."""
    if exponent.alpha is None:
        return []
    adaptive = is_adaptive(optimizer)
    usual, why = ("sqrt", "an adaptive optimizer") if adaptive else ("linear", "SGD")
    measured = f"{exponent.alpha:.2f} ({exponent.low:.2f} to {exponent.high:.2f})"
    warnings = []
    if usual in exponent.ruled_out:
        left = ", ".join(f"'{rule}'" for rule in exponent.left)
        warnings.append(
            f"rule '{usual}', the usual one for {why}, is ruled out here by an exponent of {measured}: "
            f"{f'what is left: {left}' if left else 'tune the learning rate at each batch, or use rule power with it'}"
        )
    if adaptive and "linear" in exponent.ruled_out:
        warnings.append(
            f"rule 'linear' with {optimizer}, whose steps do not grow with the gradient, goes against an exponent of "
            f"{measured}: do not use it"
        )
    if adaptive and exponent.left == ("linear",):
        warnings.append(
            f"only rule 'linear' is left for {optimizer}, whose steps do not grow with the gradient ({measured}): "
            "unusual, look whether the range of learning rates or the ladder bounds it"
        )
    return warnings
