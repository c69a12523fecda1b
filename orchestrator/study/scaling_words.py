"""A scaling check in plain sentences, each number with its uncertainty."""

from __future__ import annotations

from orchestrator.report.formats import number
from orchestrator.theory.critical_batch import Estimate
from orchestrator.theory.scaling import MOST_SEEDS, Comparison, ScalingCheck


def sentences(check: ScalingCheck, *, metric: str, rule: str, given: bool) -> list[str]:
    """One for each arm, what follows from several, and what to do about a loss.

    Args:
        check: the answer.
        metric: its name.
        rule: that carried the learning rate from batch to batch.
        given: whether the tolerance was, or is the noise between seeds.
    """
    base = check.base
    if base.diverged:
        text = (
            f"{base.diverged} of {check.seeds} runs at batch {base.global_batch}, that of {_of(base.workers)}, diverged"
        )
        return [f"Not told apart: {text}, so that there is nothing to compare with. Lower lr.base."]
    found = [_of_row(row, check, metric, given) for row in check.rows]
    if len(check.rows) > 1:
        most = check.holds_up_to
        if most is None:
            found.append("At none of these worker counts is quality known to be held.")
        else:
            found.append(f"Quality is held up to {_of(most)}.")
    if any(row.verdict == "lost" for row in check.rows):
        found.append(
            f"The loss is one of batch and learning rate together (lr.rule {rule}): before giving up the batch, try "
            "another rule, or tune lr.base there."
        )
    return found


def _of_row(row: Comparison, check: ScalingCheck, metric: str, given: bool) -> str:
    arm, base = row.arm, check.base
    who = f"{_of(arm.workers)} (batch {arm.global_batch}) against {base.workers} (batch {base.global_batch})"
    if row.verdict == "diverged":
        return (
            f"Lost: {who}: {arm.diverged} of {check.seeds} runs diverged. Lower lr.base or lengthen lr.warmup, or use "
            "fewer workers."
        )
    worse = f"{metric} is {_change(row.lost, f'at {100 * check.confidence:.3g} %, {check.seeds} seeds')}"
    within = _tolerance(check, given)
    match row.verdict:
        case "gained":
            return f"Gained: {who}: {worse}."
        case "held":
            clear = row.lost.low is not None and row.lost.low > 0
            return f"Held: {who}: {worse}, {'clearly worse, and ' if clear else ''}within {within}."
        case "lost":
            return f"Lost: {who}: {worse}, beyond {within}{_scatter(row)}."
        case _:
            return f"Not told apart: {who}: {worse}, {_why(row, check, within)}"


def _why(row: Comparison, check: ScalingCheck, within: str) -> str:
    if check.tolerance.value is None:
        return "and no tolerance: runs under different seeds do not differ. Write study.scaling.tolerance."
    if row.seeds_needed is None:
        return f"about as much as {within}{_scatter(row)}; {MOST_SEEDS} seeds would not tell."
    return f"too wide an interval for {within}{_scatter(row)}; {row.seeds_needed} seeds would probably do."


def _scatter(row: Comparison) -> str:
    if row.scatter is None:
        return ""
    return f", and its runs scatter {row.scatter:.2g} times as much between seeds"


def _tolerance(check: ScalingCheck, given: bool) -> str:
    value = number(check.tolerance.value)
    return f"the tolerance of {value}" if given else f"the noise between seeds, {value}"


def _change(lost: Estimate, sure: str) -> str:
    """Such as ``worse by 0.02 (0.01 to 0.03 at 95 %, 12 seeds)``; of an improvement with its signs turned."""
    value, low, high = (0.0 if end is None else end for end in (lost.value, lost.low, lost.high))
    if value < 0:
        return f"better by {number(-value)} ({number(-high)} to {number(-low)} {sure})"
    return f"worse by {number(value)} ({number(low)} to {number(high)} {sure})"


def _of(workers: int) -> str:
    return f"{workers} worker" if workers == 1 else f"{workers} workers"
