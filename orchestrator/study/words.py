"""What a study tells in sentences: the answer, and what weakens it."""

from __future__ import annotations

from orchestrator.config.optimizers import is_adaptive
from orchestrator.report import formats
from orchestrator.theory.critical_batch import CriticalBatch
from orchestrator.theory.ladder_planner import Verdict
from orchestrator.theory.ladder_summary import StudyResult

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
        if one.excess is not None and one.excess > COSTLY:
            warnings.append(
                f"batch {one.global_batch}: its learning rate may cost {one.excess:.0%} more samples than the best one"
            )
    exponent = found.exponent
    usual, name = ("sqrt", "adaptive") if is_adaptive(optimizer) else ("linear", "plain")
    if usual in exponent.ruled_out and exponent.alpha is not None:
        left = f"; {', '.join(exponent.left)} is left" if exponent.left else ""
        warnings.append(
            f"rule {usual}, the usual one for an optimizer that is {name} ({optimizer}), is ruled out here by an "
            f"exponent of {exponent.alpha:.2f} ({exponent.low:.2f} to {exponent.high:.2f}){left}"
        )
    if is_adaptive(optimizer) and "linear" in exponent.left and exponent.alpha is not None and len(exponent.left) == 1:
        warnings.append(
            f"rule linear is the only one left for {optimizer}, whose steps do not grow with the gradient: unusual, "
            "look whether the range of learning rates or the ladder bounds it"
        )
    return warnings
