"""Parabolas through evaluation curves in a window around some samples, one a seed, in the log of the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.theory.correlated_noise import error_of_sum
from orchestrator.theory.fieller import Array

LEAST_FACTOR, WIDEST_FACTOR = 1.15, 3.0
"""A window spans from its centre over one of these to its centre times one of these."""
MIN_POINTS = 5
"""Evaluations of a seed within the window: three coefficients, and something left to scatter."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Evaluations of one seed: `values` at `samples` >= 0, strictly ascending; both ``[n]``, n >= 1."""

    samples: Array
    values: Array

    def __post_init__(self) -> None:
        if self.samples.ndim != 1 or self.samples.shape != self.values.shape or len(self.samples) == 0:
            raise ValueError(
                f"samples {self.samples.shape}, values {self.values.shape}: must be one-dimensional, of equal length, "
                "and not empty"
            )
        if not (np.all(np.isfinite(self.samples)) and self.samples[0] >= 0 and np.all(np.diff(self.samples) > 0)):
            raise ValueError("samples of a curve must be finite, at least 0, and strictly ascending")


@dataclass(frozen=True, kw_only=True)
class Local:
    """Parabolas of all seeds around one centre.

    Attributes:
        centre: samples.
        half_width: of the window, in ln(samples).
        coefficients: level, slope and bend in ln(samples / centre), a row a seed; ``[seeds, 3]``.
        rows: for each seed the weights with which its values make up the level.
        inside: for each seed the indices of its evaluations in the window.
    """

    centre: float
    half_width: float
    coefficients: Array
    rows: tuple[Array, ...]
    inside: tuple[np.ndarray[Any, np.dtype[np.int64]], ...]

    def level_error(self, curve: Curve) -> tuple[float, int]:
        """Standard error of the level of the first seed, from its residuals, and degrees of freedom of that guess."""
        inside = self.inside[0]
        times = curve.samples[inside] / self.centre
        x = np.log(times)
        return error_of_sum(times, curve.values[inside], np.stack([np.ones_like(x), x, x**2], axis=1), self.rows[0])


def fit_around(curves: Sequence[Curve], centre: float, half_width: float, ended: float) -> Local | None:
    """Weighted least squares for each curve; None where the window holds too few evaluations, or ends too early.

    The window is as wide as the curves, which all reach `ended`, allow, at most `half_width`; where that holds fewer
    than `MIN_POINTS` of some curve, it grows. Weights are the Epanechnikov kernel times the spacing.

    >>> t = np.arange(1.0, 100.0)
    >>> local = fit_around([Curve(samples=t, values=3.0 - np.log(t / 40.0))], 40.0, math.log(1.5), 99.0)
    >>> np.abs(local.coefficients - [3.0, -1.0, 0.0]).max() < 1e-9, len(local.inside[0])
    (np.True_, 33)
    """
    room = math.log(ended / centre)
    if room < math.log(LEAST_FACTOR):
        return None
    half = min(half_width, room)
    while (inside := _inside(curves, centre, half)) is None:
        half *= 1.1
        if half > min(math.log(WIDEST_FACTOR), room):
            return None
    coefficients, rows = [], []
    for curve, here in zip(curves, inside, strict=True):
        x = np.log(curve.samples[here] / centre)
        weight = np.gradient(x) * (1.0 - (x / half) ** 2)
        basis = np.stack([np.ones_like(x), x / half, (x / half) ** 2], axis=1)
        solve = np.linalg.solve(basis.T @ (weight[:, None] * basis), (weight[:, None] * basis).T)
        coefficients.append((solve @ curve.values[here]) / np.array([1.0, half, half**2]))
        rows.append(solve[0])
    return Local(
        centre=centre, half_width=half, coefficients=np.array(coefficients), rows=tuple(rows), inside=tuple(inside)
    )


def _inside(curves: Sequence[Curve], centre: float, half: float) -> list[np.ndarray[Any, np.dtype[np.int64]]] | None:
    low, high = centre * math.exp(-half), centre * math.exp(half)
    found = [np.flatnonzero((curve.samples > low) & (curve.samples < high)) for curve in curves]
    return found if min(len(here) for here in found) >= MIN_POINTS else None
