"""The critical batch at one moment of training, from branches off one checkpoint: same start, several batches.

Two figures with two names: the batch at which the rate of learning halves, and the largest within a tolerance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from orchestrator.theory import critical_batch
from orchestrator.theory.branch_rate import SETTLE, BatchRate, Branch, batch_rate, rates_above, rates_to_a_level
from orchestrator.theory.critical_batch import MIN_BATCHES, MISFIT_P, CriticalBatch, Estimate
from orchestrator.theory.observation import Observation

NONE = Estimate()
LONG_STEP = 0.2
"""e-folds of loss an update, from which the two critical batches part by more than a tenth."""

LOCAL_CRITICAL_BATCH = (
    "local critical batch = the batch at which the loss falls half as fast per sample as at vanishing batch"
)
ONE_STEP = (
    "one-step critical batch = the batch at which the share of the loss that one update removes, per sample, halves; "
    "the one to compare with the noise scale where updates are long"
)


@dataclass(frozen=True, kw_only=True)
class LocalCriticalBatch:
    """The batch at which the per-sample rate halves, with its interval, or why it is not determined.

    Attributes:
        verdict: as `critical_batch.CriticalBatch`, or ``loss rises``, ``too few points``, ``below floor``.
        reason: empty, or ``not determined: ...``.
        local_critical_batch: samples, or None.
        low: lower end of its interval; without a value the bound that the data still set, or None.
        high: upper end, alike.
        one_step: the one-step critical batch, see `ONE_STEP`; only of rates in e-folds.
        rate0: rate at vanishing batch.
        rates: of each batch, ascending.
        in_folds: whether rates are e-folds of loss a sample; else they are one over the samples to a common loss.
        floor: of the loss, as it was given.
        lack_of_fit: probability of residuals as large if the hyperbola holds; None if unknown.
        warnings: what weakens the estimate, in sentences.
        confidence: of all intervals.
    """

    verdict: str
    reason: str = ""
    local_critical_batch: float | None = None
    low: float | None = None
    high: float | None = None
    one_step: Estimate = NONE
    rate0: Estimate = NONE
    rates: tuple[BatchRate, ...]
    in_folds: bool = True
    floor: float | None
    lack_of_fit: float | None = None
    warnings: tuple[str, ...] = ()
    confidence: float
    unit: str = "samples"
    definitions: tuple[str, ...] = (LOCAL_CRITICAL_BATCH, ONE_STEP)
    fitted: CriticalBatch | None = field(default=None, repr=False, compare=False)

    def predict(self, global_batch: float) -> Estimate:
        """The rate at a batch > 0 with the interval of the curve; empty where nothing was fitted."""
        if self.fitted is None or (found := self.fitted.predict(global_batch)).value is None:
            return Estimate()
        return _inverse(found)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict; every number in it is finite. Without `fitted`."""
        found = dataclasses.asdict(dataclasses.replace(self, fitted=None))
        del found["fitted"]
        return found


def local_critical_batch(
    branches: Iterable[Branch],
    *,
    floor: float | None = None,
    settle: float = SETTLE,
    confidence: float = 0.95,
) -> LocalCriticalBatch:
    r"""Fit the per-sample rate of the log loss over branches from one checkpoint, and say where it halves.

    .. math::
        r(B) = -\frac{d \ln(L - L_\infty)}{dE} = \frac{r_0}{1 + B / B_{crit}}

    is 1/r(B) = (1 + B/Bcrit) / r0, the samples that an e-fold costs: the hyperbola of `critical_batch.fit`, whose
    likelihood, intervals (seed noise; with one seed the residuals) and verdicts are used. It halves where the samples
    to any further loss double.

    With the floor :math:`L_\infty` known, a rate is the slope over the branch (`branch_rate.rate`). Without, it is that
    to a loss which all branches reach, where a floor makes no difference (`branch_rate.rates_to_a_level`); losses may
    then be below 0. Each is that of a typical run (mean of logs).

    With long updates no batch can remove more than all of the loss at once, and rates fall later than the noise scale
    says. The share 1 - exp(-r B) that an update removes follows McCandlish's form also then: `one_step` is fitted to
    it. On Gaussian linear regression, whose noise scale is d + 1, SGD with lr = m / (1 + (d + 1)/B) has

    .. math:: e^{-rB} = 1 - \frac{2m - m^2}{1 + (d + 1)/B}

    so that the share, per sample, halves at d + 1 for every m, and the rate does for small m, and at 2.5 (d + 1)
    for m = 1.

    It is "not determined" where the loss does not fall at the smallest batches; for fewer than 3 batches at which it
    falls; where a loss is not above the floor; and where the rates are compatible with none of it, or all of it, being
    lost to the batch. Batches from the
    first at which a branch diverged or did not fall upwards are left out, all of them: to leave out the bad ones alone
    would favour large batches.

    Args:
        branches: several seeds at each batch for an interval by seeds, or one.
        floor: the loss that cannot be undercut, if it is known.
        settle: share of each branch to leave out where the floor is known, in [0, 1).
        confidence: of the intervals, in (0, 1).

    Raises:
        ValueError: an argument out of range, or, without a floor, a branch without its loss at the checkpoint.

    >>> def branch(b):  # halves at 32
    ...     t = np.arange(5) * 512.0
    ...     return Branch(global_batch=b, seed=0, samples=tuple(t), losses=tuple(np.exp(-t * 1e-3 / (1 + b / 32))))
    >>> found = local_critical_batch([branch(b) for b in (4, 16, 64, 256)], floor=0.0)
    >>> round(found.local_critical_batch, 6), round(found.rate0.value, 9)
    (32.0, 0.001)
    """
    if not 0.0 <= settle < 1.0:
        raise ValueError(f"settle = {settle!r}: must be at least 0 and below 1")
    groups: dict[int, list[Branch]] = {}
    for branch in sorted(branches, key=lambda one: one.global_batch):
        groups.setdefault(branch.global_batch, []).append(branch)
    bad = next((batch for batch, group in groups.items() if not all(map(_falls, group))), None)
    kept = {batch: group for batch, group in groups.items() if bad is None or batch < bad}
    found: dict[int, list[float] | str] = {}
    in_folds, low = True, _lowest(kept) if floor is not None else None
    if floor is None and kept:
        found, in_folds = rates_to_a_level(kept)
    elif floor is not None and (low is None or low[0] > floor):
        found = rates_above(floor, kept, settle)
        slowest = [batch for batch, one in found.items() if not isinstance(one, str) and min(one) <= 0.0]
        if slowest:  # it fell at first, and then came to rest or rose
            bad = slowest[0]
            found = {batch: one for batch, one in found.items() if batch < bad}
    used = {batch: rates for batch, rates in found.items() if not isinstance(rates, str)}
    rates = tuple(batch_rate(batch, used.get(batch, []), len(group)) for batch, group in groups.items())
    blank = LocalCriticalBatch(verdict="", rates=rates, floor=floor, in_folds=in_folds, confidence=confidence)
    if floor is not None and low is not None and low[0] <= floor:
        reason = f"not determined: loss {low[0]:.6g} at batch {low[1]} is not above the floor {floor:.6g}"
        return dataclasses.replace(blank, verdict="below floor", reason=f"{reason}. Give a lower floor")
    if len(used) < MIN_BATCHES:
        untold = next((rates for rates in found.values() if isinstance(rates, str)), "")
        return _too_few(blank, len(used), len(groups), bad, untold)
    fitted = _fit(used, confidence, lambda batch, one: 1.0 / one)
    one_step = NONE
    if in_folds:
        steps = _fit(used, confidence, lambda batch, one: batch / -math.expm1(-one * batch))
        one_step = Estimate(value=steps.critical_batch, low=steps.low, high=steps.high)
    value = fitted.critical_batch
    return dataclasses.replace(
        blank,
        verdict=fitted.verdict,
        reason=_reason(fitted, list(used)),
        local_critical_batch=value,
        low=fitted.low,
        high=fitted.high,
        one_step=one_step,
        rate0=_inverse(fitted.emin),
        lack_of_fit=fitted.lack_of_fit,
        warnings=tuple(_warnings(fitted, used, found, bad, in_folds)),
        fitted=fitted,
    )


def _fit(used: dict[int, list[float]], confidence: float, cost: Any) -> CriticalBatch:
    costs = [(batch, cost(batch, one)) for batch, found in used.items() for one in found]
    return critical_batch.fit(
        [Observation(global_batch=batch, samples=float(samples)) for batch, samples in costs], confidence=confidence
    )


def _lowest(groups: Mapping[int, Sequence[Branch]]) -> tuple[float, int] | None:
    """The lowest loss of all branches and its batch."""
    return min(((min(one.losses), batch) for batch, group in groups.items() for one in group), default=None)


def _falls(branch: Branch) -> bool:
    """Whether the last quarter of a branch lies below its beginning."""
    late = branch.losses[-max(1, len(branch.losses) // 4) :]
    return len(branch.losses) > 1 and float(np.mean(late)) < branch.losses[0]


def _too_few(blank: LocalCriticalBatch, used: int, tried: int, bad: int | None, untold: str) -> LocalCriticalBatch:
    if bad is not None:
        verdict = "loss rises"
        reason = (
            f"the loss does not fall at batch {bad}, which leaves {used} of {tried} batches, and {MIN_BATCHES} are "
            "needed. Lower the learning rate, branch longer, or take another rule"
        )
    elif untold:
        verdict = "too few points"
        reason = f"the rate is known at {used} of {tried} batches, at least {MIN_BATCHES} are needed; {untold}"
    else:
        verdict = "too few batches"
        reason = f"branches at {tried} batches, at least {MIN_BATCHES} are needed. Add batches"
    return dataclasses.replace(blank, verdict=verdict, reason=f"not determined: {reason}")


def _reason(fitted: CriticalBatch, batches: Sequence[int]) -> str:
    """What `critical_batch` found, in the words of rates."""
    span, sure = f"from batch {min(batches)} to {max(batches)}", f"at {100 * fitted.confidence:g} %"
    match fitted.verdict:
        case "determined":
            return ""
        case "perfect scaling":
            above = "" if fitted.low is None else f": the local critical batch is above {fitted.low:.3g} {sure}"
            return f"not determined: the rate does not clearly fall {span}{above}. Add larger batches, or seeds"
        case "beyond critical":
            below = "" if fitted.high is None else f": the local critical batch is below {fitted.high:.3g} {sure}"
            return f"not determined: the rate falls in proportion {span}{below}. Add smaller batches, or seeds"
        case "no hyperbola":
            return (
                f"not determined: rates {span} follow no r0 / (1 + B/Bcrit). Check the learning rates of the branches"
            )
    return f"not determined: rates {span} scatter too much. Add seeds, branch longer, or take batches further apart"


def _warnings(
    fitted: CriticalBatch,
    used: dict[int, list[float]],
    found: dict[int, list[float] | str],
    bad: int | None,
    in_folds: bool,
) -> Iterator[str]:
    if bad is not None:
        yield f"the loss does not fall at batch {bad}: only smaller batches were used"
    for batch, why in found.items():
        if isinstance(why, str):
            yield f"batch {batch} is left out: {why.removeprefix('not determined: ')}"
    if fitted.lack_of_fit is not None and fitted.lack_of_fit < MISFIT_P:
        yield (
            f"rates miss the hyperbola by {100 * (fitted.rms_log_residual or 0.0):.2g} % (rms), more than seeds "
            f"explain (p = {fitted.lack_of_fit:.1g}); the interval allows for that"
        )
    if fitted.set_aside:
        yield f"{len(fitted.set_aside)} of {fitted.runs + len(fitted.set_aside)} branches are gross outliers, not used"
    value = fitted.critical_batch
    if value is not None and not min(used) <= value <= max(used):
        yield f"extrapolated: no branch was trained beyond {max(used) if value > max(used) else min(used)}"
    longest = max(batch * float(np.mean(found)) for batch, found in used.items())
    if in_folds and longest > LONG_STEP:
        yield (
            f"an update at the largest batches removes {-100 * math.expm1(-longest):.0f} % of the loss: "
            "compare the one-step critical batch with the noise scale"
        )


def _inverse(samples: Estimate) -> Estimate:
    value, low, high = (
        None if one is None or one == 0 else 1.0 / one for one in (samples.value, samples.low, samples.high)
    )
    return Estimate(value=value, low=high, high=low)
