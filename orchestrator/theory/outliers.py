"""Single runs that lie grossly apart from the other seeds of their batch."""

from __future__ import annotations

import math

import numpy as np

from orchestrator.theory.fieller import Array

MIN_PAIRS = 6
TOO_FAR = 6.0
OWN_RUNS = 5
"""From so many runs on, one outlier leaves the median of the differences to those of the others."""
LEAST = math.log(1.5)


def gross_outliers(log_samples: Array, batch: Array, censored: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[int]:
    """Indices of runs further than `TOO_FAR` robust standard deviations, and a factor 1.5, from their batch's median.

    The standard deviation is pooled over the batches: the median absolute difference of two reached runs of a batch,
    over 0.954, which is its value for a standard normal; a batch that scatters more, by `OWN_RUNS` runs, is held to its
    own. It needs `MIN_PAIRS` such pairs, and a batch three runs. A
    censored run counts by its budget, which it passed. Normal runs are hardly ever set aside, so that intervals keep
    their coverage.

    >>> log_samples = np.log([10.0, 10.1, 9.9, 12.0, 12.1, 90.0, 20.0, 20.5, 19.5])
    >>> gross_outliers(log_samples, np.repeat([1.0, 2.0, 4.0], 3), np.zeros(9, dtype=bool))
    [5]
    """
    groups = [np.flatnonzero(batch == b) for b in np.unique(batch)]
    differences: list[float] = []
    for group in groups:
        y = log_samples[group[~censored[group]]]
        differences += np.abs(y[:, None] - y)[np.triu_indices(len(y), 1)].tolist()
    if len(differences) < MIN_PAIRS:
        return []
    common = float(np.median(differences))
    found: list[int] = []
    for group in groups:
        if len(group) >= 3:
            y = log_samples[group]
            away = y - np.median(y)
            own = np.abs(y[:, None] - y)[np.triu_indices(len(y), 1)] if len(y) >= OWN_RUNS else np.zeros(1)
            limit = max(TOO_FAR * max(common, float(np.median(own))) / 0.954, LEAST)
            # A censored run below the median may yet be anywhere.
            found += group[(np.abs(away) > limit) & ~(censored[group] & (away < 0))].tolist()
    return found
