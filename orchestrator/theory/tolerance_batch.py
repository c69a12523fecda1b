"""The largest batch whose loss after a branch is within a tolerance of the smallest one's (Merrill et al. 2025).

It depends on the length of the branches and on the tolerance, and is told with both.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from orchestrator.theory._checks import positive
from orchestrator.theory.branch_rate import Branch, log_excess


@dataclass(frozen=True, kw_only=True)
class FinalLoss:
    """Loss at the end of the branches of one batch; None: it diverged.

    `above` is its difference to the smallest batch's; None where either diverged. `above_se` is the standard error of
    `above` by the seeds, with `above_dof` degrees of freedom; None with one seed.
    """

    global_batch: int
    loss: float | None
    above: float | None
    above_se: float | None
    above_dof: float | None
    seeds: int


@dataclass(frozen=True, kw_only=True)
class ToleranceBatch:
    """The largest batch within the tolerance.

    Attributes:
        tolerance_batch: the largest tried batch such that it and all smaller ones end within `tolerance`; None if the
            smallest diverged or fewer than 2 batches were tried.
        crossing: where the loss leaves the tolerance, interpolated between the tried batches; None where it does not.
        low: the largest such batch with the upper end of each difference's interval; None with one seed a batch.
        high: the same with the lower end.
        all_within: whether even the largest tried batch is: then the figure is a lower bound.
        tolerance: in units of the loss.
        length_samples: of the branches.
        losses: of each batch, ascending.
        definition: in a sentence, with length and tolerance.
        confidence: of `low` and `high`, for each difference alone.
        reason: empty, or ``not determined: ...``.
    """

    tolerance_batch: int | None = None
    crossing: float | None = None
    low: int | None = None
    high: int | None = None
    all_within: bool = False
    tolerance: float
    length_samples: float
    losses: tuple[FinalLoss, ...]
    definition: str
    confidence: float
    reason: str = ""
    unit: str = "samples"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict; every number in it is finite."""
        return dataclasses.asdict(self)


def tolerance_batch(
    branches: Iterable[Branch],
    *,
    tolerance: float,
    length_samples: float,
    floor: float | None = None,
    confidence: float = 0.95,
) -> ToleranceBatch:
    """The largest batch whose loss `length_samples` after the checkpoint is at most the smallest batch's + `tolerance`.

    Losses between evaluations are interpolated in ln(loss - floor), or linearly without a floor, and where a loss is
    not above it. Seeds are averaged first.

    Source: Merrill et al. 2025, "Critical Batch Size Revisited" (arXiv:2505.23971): branch at several batches from one
    checkpoint, with the learning rate by a rule, and take the largest batch that does not degrade the loss. The
    tolerance is part of that definition, and so is the length: see `closed_form`.

    Args:
        branches: one or more seeds a batch; an empty one diverged.
        tolerance: > 0, in units of the loss.
        length_samples: > 0; each branch must have been evaluated there or later.
        floor: of the loss, for interpolation only; None if it is not known.
        confidence: in (0, 1).

    Raises:
        ValueError: an argument out of range, or a branch that is shorter.

    >>> def branch(b):
    ...     return Branch(global_batch=b, seed=0, samples=(0.0, 64.0), losses=(1.0, 0.5 + 0.01 * b))
    >>> found = tolerance_batch([branch(b) for b in (1, 2, 4, 8)], tolerance=0.04, length_samples=64)
    >>> found.tolerance_batch, round(found.crossing, 9)
    (4, 5.0)
    """
    positive("tolerance", tolerance)
    positive("length_samples", length_samples)
    groups: dict[int, list[float]] = {}
    for branch in branches:
        groups.setdefault(branch.global_batch, []).append(_loss_at(branch, length_samples, floor))
    batches = sorted(groups)
    losses = tuple(_final(batch, groups[batch], groups[batches[0]], batch == batches[0]) for batch in batches)
    blank = ToleranceBatch(
        tolerance=tolerance,
        length_samples=length_samples,
        losses=losses,
        confidence=confidence,
        definition=(
            f"tolerance batch = the largest batch whose loss, {length_samples:g} samples after the checkpoint, is "
            f"within {tolerance:g} of the smallest batch's (Merrill 2025)"
        ),
    )
    if len(batches) < 2 or losses[0].loss is None:
        what = "fewer than 2 batches were tried" if len(batches) < 2 else "the smallest batch diverged"
        return dataclasses.replace(blank, reason=f"not determined: {what}")

    def within(shift: float) -> list[int]:
        """The batches up to the first whose difference, moved by `shift` half-widths, is beyond the tolerance."""
        found = []
        for one in losses:
            if one.above is None or one.above + shift * _half(one, confidence) > tolerance:
                break
            found.append(one.global_batch)
        return found

    inside = within(0.0)
    by_seeds = all(one.above_se is not None for one in losses[1:] if one.above is not None)
    return dataclasses.replace(
        blank,
        tolerance_batch=inside[-1],
        crossing=_crossing(losses, len(inside), tolerance),
        low=within(1.0)[-1] if by_seeds else None,
        high=within(-1.0)[-1] if by_seeds else None,
        all_within=len(inside) == len(batches),
    )


def closed_form(
    *,
    rate0: float,
    critical_batch: float,
    excess_loss: float,
    tolerance: float,
    length_samples: float,
    smallest_batch: float = 0.0,
) -> float:
    r"""The tolerance batch where the excess loss decays at the rate of `branching`, inf if every batch is within.

    With :math:`\ell(B) = \ell_0 e^{-N r(B)}` and :math:`r(B) = r_0 / (1 + B / B_{crit})`, setting
    :math:`\ell(B) = \ell(B_1) + \epsilon` gives

    .. math::
        B = B_{crit} \left(\frac{N r_0}{-\ln\left(e^{-N r(B_1)} + \epsilon / \ell_0\right)} - 1\right)

    so it grows with the tolerance, and with a longer branch it first falls and then, once every branch is near the
    floor, grows again: not a property of the task alone. On Gaussian linear regression without label noise (see
    `branching.local_critical_batch`), SGD with lr = m / (1 + (d + 1)/B) multiplies the expected excess loss by
    1 - (2m - m^2) / (1 + (d + 1)/B) an update; for small m this is the above with :math:`r_0 = 2m / (d + 1)` and
    :math:`B_{crit} = d + 1`.

    Args:
        rate0: :math:`r_0`, e-folds a sample at vanishing batch, > 0.
        critical_batch: :math:`B_{crit}`, samples, > 0.
        excess_loss: :math:`\ell_0`, loss above the floor at the checkpoint, > 0.
        tolerance: :math:`\epsilon`, > 0, in units of the loss.
        length_samples: N, > 0.
        smallest_batch: :math:`B_1`, samples, >= 0.

    >>> round(closed_form(rate0=1e-3, critical_batch=32.0, excess_loss=1.0, tolerance=0.01, length_samples=1000.0), 3)
    0.882
    """
    for name, value in (("rate0", rate0), ("critical_batch", critical_batch), ("excess_loss", excess_loss)):
        positive(name, value)
    positive("tolerance", tolerance)
    positive("length_samples", length_samples)
    folds = length_samples * rate0
    share = math.exp(-folds / (1.0 + smallest_batch / critical_batch)) + tolerance / excess_loss
    return math.inf if share >= 1.0 else critical_batch * (folds / -math.log(share) - 1.0)


def _loss_at(branch: Branch, length_samples: float, floor: float | None) -> float:
    if not branch.samples:
        return math.nan
    if branch.samples[-1] < length_samples:
        raise ValueError(
            f"batch {branch.global_batch}: the branch ends after {branch.samples[-1]:g} samples, before length_samples "
            f"= {length_samples:g}. Take a shorter length"
        )
    if floor is None or min(branch.losses) <= floor:
        return float(np.interp(length_samples, branch.samples, branch.losses))
    x, y = log_excess(branch, floor)
    return floor + math.exp(float(np.interp(length_samples, x, y)))


def _final(batch: int, found: list[float], smallest: list[float], is_smallest: bool) -> FinalLoss:
    blank = FinalLoss(global_batch=batch, loss=None, above=None, above_se=None, above_dof=None, seeds=len(found))
    if not all(map(math.isfinite, found)):
        return blank
    loss, n, m = float(np.mean(found)), len(found), len(smallest)
    if not all(map(math.isfinite, smallest)):
        return dataclasses.replace(blank, loss=loss)
    above = loss - float(np.mean(smallest))
    se = dof = None
    if is_smallest:
        se, dof = 0.0, math.inf
    elif n > 1 and m > 1:
        own, other = float(np.var(found, ddof=1)) / n, float(np.var(smallest, ddof=1)) / m
        se = math.sqrt(own + other)
        # Welch and Satterthwaite's: seeds need not scatter alike at both batches.
        dof = (own + other) ** 2 / (own**2 / (n - 1) + other**2 / (m - 1)) if se else n + m - 2.0
    return FinalLoss(global_batch=batch, loss=loss, above=above, above_se=se, above_dof=dof, seeds=n)


def _half(one: FinalLoss, confidence: float) -> float:
    """Half the width of the interval of the difference; 0 where it is unknown."""
    if not one.above_se or one.above_dof is None:
        return 0.0
    return one.above_se * float(stats.t.ppf(0.5 + confidence / 2, one.above_dof))


def _crossing(losses: tuple[FinalLoss, ...], inside: int, tolerance: float) -> float | None:
    """Between the last batch within and the first beyond, linear in the batch, as small differences are."""
    if inside == len(losses) or losses[inside].above is None:
        return None
    last, first = losses[inside - 1], losses[inside]
    a, b = last.above or 0.0, first.above or 0.0
    return last.global_batch + (tolerance - a) / (b - a) * (first.global_batch - last.global_batch)
