"""Which learning-rate rule carries one base learning rate best across batch sizes, from finished trials.

At one batch size a rule and a base learning rate cannot be told apart: only their product was trained with. So a rule
is judged by what a single base would have given at every batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.theory._checks import whole
from orchestrator.theory.lr_curve import SAME_LOG_LR, LossByLr, loss_by_lr
from orchestrator.theory.lr_rules import scale


@dataclass(frozen=True, kw_only=True)
class RuleChoice:
    """A rule with its parameters, as `lr_rules.scale` takes them."""

    rule: str
    exponent: float | None = None
    noise_scale: float | None = None


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """What a rule's common base gives at one batch, next to the best that was tried there.

    Attributes:
        global_batch: samples.
        peak_lr: the learning rate that the rule implies here.
        value: the result at `peak_lr`, or None where it is not covered.
        interpolated: whether `value` lies between two tried learning rates.
        tuned_lr: the best learning rate tried at this batch.
        tuned_value: its result.
        shortfall: how far `value` is behind `tuned_value`, in the metric's units, >= 0; None where not covered.
    """

    global_batch: int
    peak_lr: float
    value: float | None
    interpolated: bool
    tuned_lr: float
    tuned_value: float
    shortfall: float | None


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """The best common base of one rule.

    Attributes:
        choice: the rule and its parameters.
        base_lr: the common base, stated at the reference batch; None where not determined.
        batches: one result a batch, by size; empty where not determined.
        covered: batches with a result. Means are over these only; compare rules of unequal coverage with care.
        total: batches with any finite trial.
        mean_value: mean result over the covered batches.
        mean_shortfall: mean shortfall over the covered batches.
        at_edge: whether the base is the least or the largest of those that cover as many batches, so that a better
            one may lie outside of what was tried.
        reason: empty, or ``not determined: ...``.
    """

    choice: RuleChoice
    base_lr: float | None
    batches: tuple[BatchResult, ...]
    covered: int
    total: int
    mean_value: float | None
    mean_shortfall: float | None
    at_edge: bool
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return dataclasses.asdict(self)


def compare_rules(
    trials: Iterable[tuple[int, float, float]],
    rules: Sequence[RuleChoice],
    *,
    mode: Literal["min", "max"],
    reference_batch: int,
) -> list[RuleResult]:
    """For each rule, the one base learning rate that does best over all batches, and what it costs against tuning each.

    A base b implies the peak ``b * scale(rule, reference_batch, B)`` at batch B. Its result there is the trial at that
    peak, or is interpolated, linear in log LR, between the two trials around it; never extrapolated. Among the bases
    that cover the most batches the one of least mean shortfall is taken, which on the same batches is the best mean
    result. Results are piecewise linear in log b, so only bases that put some batch on a tried peak are looked at.

    Assumed: a peak tried several times at one batch (other warmup, other seed) counts with its best value, so other
    hyperparameters are taken as free to tune; the trials share the optimizer's constants, which ``sde`` ones do not:
    compare those among themselves. Values carry the noise of their seeds, hence a shortfall below the spread
    between seeds means nothing.

    Args:
        trials: ``(global_batch, peak_lr, value)`` of finished trials. A value that is not finite marks the peak as
            diverged: results are not interpolated next to it.
        rules: what to compare.
        mode: whether less or more of the value is better.
        reference_batch: samples at which the bases are stated.

    Returns:
        One result a rule, in the order of `rules`.

    Raises:
        ValueError: for a mode, batch, peak or rule that is not legal.

    >>> trials = [(b, lr, abs(math.log2(lr / 0.1 / (b / 64) ** 0.5)))
    ...           for b in (64, 256) for lr in (0.05, 0.1, 0.2, 0.4)]
    >>> root, linear = compare_rules(
    ...     trials, [RuleChoice(rule="sqrt"), RuleChoice(rule="linear")], mode="min", reference_batch=64)
    >>> root.base_lr, root.mean_shortfall, linear.mean_shortfall
    (0.1, 0.0, 0.5)
    """
    if mode not in ("min", "max"):
        raise ValueError(f"mode = {mode!r}: must be min or max")
    whole("reference_batch", reference_batch)
    sign = 1.0 if mode == "min" else -1.0
    losses = ((batch, lr, sign * value) for batch, lr, value in trials)
    curves = loss_by_lr(losses)
    return [_best_base(choice, curves, sign, reference_batch) for choice in rules]


def _best_base(choice: RuleChoice, curves: dict[int, LossByLr], sign: float, reference_batch: int) -> RuleResult:
    shift = {
        batch: math.log(
            scale(choice.rule, reference_batch, batch, exponent=choice.exponent, noise_scale=choice.noise_scale)
        )
        for batch in curves
    }
    # (batches not covered, mean shortfall, log base): the least of these is the answer.
    ranked: list[tuple[int, float, float]] = []
    for log_base in sorted({x - shift[batch] for batch, curve in curves.items() for x in curve.log_lrs}):
        found = {batch: curve.at(log_base + shift[batch]) for batch, curve in curves.items()}
        shortfalls = [max(0.0, hit[0] - min(curves[batch].losses)) for batch, hit in found.items() if hit is not None]
        if shortfalls:
            ranked.append((len(curves) - len(shortfalls), math.fsum(shortfalls) / len(shortfalls), log_base))
    missing, mean_shortfall, log_base = min(ranked, default=(len(curves), math.nan, math.nan))
    covered = len(curves) - missing
    if covered < 2:
        reason = (
            f"not determined: trials at {len(curves)} batch size(s), and a rule is told from its base only across two"
            if len(curves) < 2
            else "not determined: no base puts a peak inside the tried learning rates of two batches"
        )
        return RuleResult(
            choice=choice,
            base_lr=None,
            batches=(),
            covered=covered,
            total=len(curves),
            mean_value=None,
            mean_shortfall=None,
            at_edge=False,
            reason=reason,
        )
    batches = tuple(_at_batch(batch, curve, log_base + shift[batch], sign) for batch, curve in curves.items())
    values = [result.value for result in batches if result.value is not None]
    rivals = [base for left, _, base in ranked if left == missing]
    return RuleResult(
        choice=choice,
        base_lr=_exp(log_base),
        batches=batches,
        covered=covered,
        total=len(curves),
        mean_value=math.fsum(values) / len(values),
        mean_shortfall=mean_shortfall,
        at_edge=min(log_base - rivals[0], rivals[-1] - log_base) <= SAME_LOG_LR,
        reason="",
    )


def _at_batch(batch: int, curve: LossByLr, log_lr: float, sign: float) -> BatchResult:
    hit = curve.at(log_lr)
    best = min(curve.losses)
    return BatchResult(
        global_batch=batch,
        peak_lr=_exp(log_lr),
        value=None if hit is None else sign * hit[0],
        interpolated=hit is not None and hit[1],
        tuned_lr=_exp(curve.log_lrs[curve.losses.index(best)]),
        tuned_value=sign * best,
        shortfall=None if hit is None else max(0.0, hit[0] - best),
    )


def _exp(log_lr: float) -> float:
    # Twelve digits: what a trip through the logarithm keeps.
    return float(f"{math.exp(log_lr):.12g}")
