"""The exponent of the best learning rate against the batch, with its interval, and the scaling rules that it rules out.

Which learning rate is best at a batch is found elsewhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from orchestrator.theory._checks import positive, whole

RULES = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
MISFIT_P = 0.01


@dataclass(frozen=True, kw_only=True)
class BestLr:
    """The learning rate that reached the target soonest at one batch.

    Attributes:
        global_batch: B, samples.
        lr: peak learning rate, > 0.
        se_log: standard error of ln(lr), if known; for all batches or none. The best of a grid with steps of a factor
            r has at least ln(r) / sqrt(12).
    """

    global_batch: int
    lr: float
    se_log: float | None = None

    def __post_init__(self) -> None:
        whole("global_batch", self.global_batch)
        positive("lr", self.lr)
        if self.se_log is not None:
            positive("se_log", self.se_log)


@dataclass(frozen=True, kw_only=True)
class LrExponent:
    """alpha of lr ~ B^alpha, or why it is not determined.

    Attributes:
        alpha: exponent, or None.
        low: lower end of its interval at `confidence`.
        high: upper end.
        lr_at_one: the line at B = 1, so that lr = lr_at_one * B^alpha.
        ruled_out: which of the rules none, sqrt and linear (exponents 0, 0.5, 1) lie outside of the interval.
        left: those inside.
        batches: batches used, ascending.
        beyond: batches left out because they lie above the critical batch.
        rms_log_residual: root mean square distance of ln(lr) from the line.
        bend: probability of residuals as large as these if a power law holds and standard errors are right, or None.
        reason: empty, or ``not determined: ...``.
        confidence: of the interval.
    """

    alpha: float | None = None
    low: float | None = None
    high: float | None = None
    lr_at_one: float | None = None
    ruled_out: tuple[str, ...] = ()
    left: tuple[str, ...] = tuple(RULES)
    batches: tuple[int, ...]
    beyond: tuple[int, ...]
    rms_log_residual: float | None = None
    bend: float | None = None
    reason: str = ""
    confidence: float

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict; every number in it is finite."""
        return dataclasses.asdict(self)


def lr_exponent(
    points: Iterable[BestLr], *, critical_batch: float | None = None, confidence: float = 0.95
) -> LrExponent:
    r"""Weighted least squares of ln(lr) on ln(B) up to the critical batch, above which no power law is expected.

    .. math:: \ln lr = c + \alpha \ln B, \qquad w = 1 / \mathrm{se}^2

    Without standard errors the scatter about the line sets the interval, by Student's t with n - 2 degrees of freedom.
    With them the normal quantile does, unless the points scatter more than they allow (p < `MISFIT_P`): then the
    interval is widened by the root of the excess, and t is used.

    Source: that alpha is 1 for SGD and 0.5 for Adam while noise dominates, and falls towards 0 near the critical batch:
    McCandlish et al. 2018 (arXiv:1812.06162), section 2.2, Malladi et al. 2022 (arXiv:2205.10287). So the exponent of
    a ladder that ends near the critical batch lies below that of small batches.

    Args:
        points: the best learning rate at each batch.
        critical_batch: batches above it are left out; None: all are used.
        confidence: of the interval, in (0, 1).

    Raises:
        ValueError: for an argument out of range, or standard errors of some points only.

    >>> found = lr_exponent([BestLr(global_batch=b, lr=0.01 * b**0.5, se_log=0.1) for b in (8, 32, 128, 512)])
    >>> round(found.alpha, 6), found.ruled_out, found.left
    (0.5, ('none', 'linear'), ('sqrt',))
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence = {confidence!r}: must be above 0 and below 1, such as 0.95")
    if critical_batch is not None:
        positive("critical_batch", critical_batch)
    every = sorted(points, key=lambda point: point.global_batch)
    used = [point for point in every if critical_batch is None or point.global_batch <= critical_batch]
    errors = [point.se_log for point in used if point.se_log is not None]
    if len(errors) not in (0, len(used)):
        raise ValueError(
            f"se_log is given for {len(errors)} of {len(used)} points: give it for all of them, or for none"
        )
    batches = tuple(sorted({point.global_batch for point in used}))
    beyond = tuple(sorted({point.global_batch for point in every} - set(batches)))
    blank = LrExponent(batches=batches, beyond=beyond, confidence=confidence)
    needed = 2 if errors else 3
    if len(batches) < needed:
        where = "" if critical_batch is None else f" up to the critical batch, {critical_batch:.4g}"
        reason = f"not determined: {len(batches)} batches{where}, at least {needed} are needed. Add smaller batches"
        return dataclasses.replace(blank, reason=reason)

    x = np.log([point.global_batch for point in used])
    y = np.log([point.lr for point in used])
    weight = np.array(errors) ** -2.0 if errors else np.ones(len(used))
    mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
    spread = float(np.sum(weight * (x - mean_x) ** 2))
    alpha = float(np.sum(weight * (x - mean_x) * (y - mean_y))) / spread
    residuals = y - mean_y - alpha * (x - mean_x)
    squares, dof = float(np.sum(weight * residuals**2)), len(used) - 2
    bend = float(stats.chi2.sf(squares, dof)) if errors and dof else None
    if not errors or (bend is not None and bend < MISFIT_P):
        reach = float(stats.t.ppf(0.5 + confidence / 2, dof)) * math.sqrt(squares / dof / spread)
    else:
        reach = float(stats.norm.ppf(0.5 + confidence / 2)) / math.sqrt(spread)
    # Points on one line leave rounding.
    reach = max(reach, 1e-12)
    out = tuple(rule for rule, exponent in RULES.items() if abs(exponent - alpha) > reach)
    return dataclasses.replace(
        blank,
        alpha=alpha,
        low=alpha - reach,
        high=alpha + reach,
        lr_at_one=math.exp(float(mean_y - alpha * mean_x)),
        ruled_out=out,
        left=tuple(rule for rule in RULES if rule not in out),
        rms_log_residual=math.sqrt(float(np.mean(residuals**2))),
        bend=bend,
    )
