"""What a study tells in sentences: the answer, and what weakens it."""

from __future__ import annotations

from orchestrator.config.optimizers import is_adaptive
from orchestrator.report import formats
from orchestrator.theory.critical_batch import CriticalBatch
from orchestrator.theory.ladder_planner import Verdict
from orchestrator.theory.ladder_summary import StudyResult
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
        if one.excess is not None and one.excess > COSTLY:
            warnings.append(
                f"batch {one.global_batch}: its learning rate may cost {one.excess:.0%} more samples than the best one"
            )
    return [*warnings, *_of_rules(found.exponent, optimizer)]


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
    if adaptive and exponent.left == ("linear",):
        warnings.append(
            f"only rule 'linear' is left for {optimizer}, whose steps do not grow with the gradient ({measured}): "
            "unusual, look whether the range of learning rates or the ladder bounds it"
        )
    return warnings
