"""The noise scale of several runs at one moment of training: their parts averaged first, then divided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from orchestrator.theory.fieller import Array, bounds
from orchestrator.theory.noise_scale import NoiseEstimate, not_determined


@dataclass(frozen=True, kw_only=True)
class NoiseWindow:
    """What the last updates of one run told, determined or not.

    Attributes:
        trace: mean estimate of tr(Sigma), in squared gradient units.
        trace_se: its standard error.
        g2: mean estimate of |G|^2.
        g2_se: its standard error.
        correlation: of the errors of the two, in [-1, 1]: both come from the same norms.
        blocks: blocks of updates behind the standard errors, >= 2.
    """

    trace: float
    trace_se: float
    g2: float
    g2_se: float
    correlation: float
    blocks: int


def pooled(windows: Sequence[NoiseWindow], *, confidence: float = 0.95) -> NoiseEstimate:
    r"""The noise scale as a ratio of means over runs (seeds of one setting), with Fieller's interval.

    Runs whose own ratio is not determined count as all others: to leave them out would select large :math:`|G|^2`. The
    errors of the means are those within the runs, with the degrees of freedom of all their blocks; or, where three or
    more runs scatter by more than that, those by the runs themselves.

    Args:
        windows: one a run, at least one.
        confidence: of the interval, in (0, 1).

    Raises:
        ValueError: without windows.

    >>> one = NoiseWindow(trace=40.0, trace_se=4.0, g2=10.0, g2_se=4.0, correlation=0.0, blocks=20)
    >>> alone, three = pooled([one]), pooled([one] * 3)
    >>> alone.value == three.value == 4.0, alone.low < three.low < three.high < alone.high
    (True, True)
    """
    if not windows:
        raise ValueError("windows = []: at least one is needed")
    runs = len(windows)
    parts = np.array([(one.trace, one.g2) for one in windows])
    trace, g2 = (float(part) for part in np.mean(parts, axis=0))
    covariance = sum((_covariance(one) for one in windows), np.zeros((2, 2))) / runs**2
    dof = sum(one.blocks - 1 for one in windows)
    if runs > 2:
        between: Array = np.atleast_2d(np.cov(parts, rowvar=False)) / runs
        contrast = np.array([1.0, -trace / g2 if g2 else 0.0])
        if contrast @ between @ contrast > contrast @ covariance @ contrast:
            covariance, dof = between, runs - 1
    vxx, vyy, vxy = (float(covariance[at]) for at in ((0, 0), (1, 1), (0, 1)))
    t = float(special.stdtrit(dof, 0.5 + confidence / 2))
    low, high = bounds(trace, g2, vxx, vyy, vxy, t)
    reason = not_determined(trace, g2, t * math.sqrt(vyy), low, high, confidence)
    known = not reason and low is not None and high is not None
    return NoiseEstimate(
        value=max(0.0, trace / g2) if known else None,
        low=max(0.0, low) if known and low is not None else None,
        high=high if known else None,
        trace=trace,
        trace_se=math.sqrt(vxx),
        g2=g2,
        g2_se=math.sqrt(vyy),
        correlation=vxy / math.sqrt(vxx * vyy) if vxx and vyy else 0.0,
        windows=runs,
        dropped=0,
        blocks=dof + 1,
        confidence=confidence,
        reason=reason,
    )


def _covariance(one: NoiseWindow) -> Array:
    shared = one.correlation * one.trace_se * one.g2_se
    return np.array([[one.trace_se**2, shared], [shared, one.g2_se**2]])
