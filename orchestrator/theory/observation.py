"""What a critical batch is fitted to: samples to the target at one batch, and its standard error where it is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.theory._checks import positive, whole
from orchestrator.theory.fieller import Array
from orchestrator.theory.hyperbola import Data


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Samples to the target at one batch: of one run, or of the expected curve of several.

    Attributes:
        global_batch: B, samples.
        samples: samples to the target, 0 if it was met before training; of a censored run its budget, > 0.
        censored: whether the budget ended before the target. A run stopped because it looked bad must not enter: it
            would have needed more than its budget tells.
        se_log: standard error of ln(samples), if known, such as that of `target_crossing`; for all or none of the
            reached observations.
        se_dof: degrees of freedom behind `se_log`, one less than the seeds; None if it is exact.
    """

    global_batch: int
    samples: float
    censored: bool = False
    se_log: float | None = None
    se_dof: int | None = None

    def __post_init__(self) -> None:
        whole("global_batch", self.global_batch)
        if self.censored or self.samples != 0:
            positive("samples", self.samples)
        if self.se_log is not None:
            positive("se_log", self.se_log)
        if self.se_dof is not None:
            whole("se_dof", self.se_dof)


def batches_of(runs: Sequence[Observation]) -> Array:
    """The global batch of each, as floats.

    >>> batches_of([Observation(global_batch=8, samples=100.0)]).tolist()
    [8.0]
    """
    return np.array([run.global_batch for run in runs], dtype=np.float64)


def log_data(runs: Sequence[Observation], sd_log: float | None) -> tuple[Data, float | None]:
    """The runs in log space, and the degrees of freedom behind known standard errors (None: exact)."""
    errors = _errors(runs)
    sd = np.full(len(runs), 1.0 if sd_log is None else sd_log) if errors is None else errors
    freedoms = [run.se_dof for run in runs if not run.censored]
    data = Data(
        log_samples=np.log([run.samples for run in runs]),
        batch=batches_of(runs),
        censored=np.array([run.censored for run in runs]),
        sd=sd,
        known=errors is not None or sd_log is not None,
    )
    return data, None if None in freedoms else sum(freedom or 0 for freedom in freedoms)


def _errors(runs: Sequence[Observation]) -> Array | None:
    """Standard errors, of which those with few degrees of freedom are replaced by what they have in common.

    A weight from three seeds is mostly chance, and prefers the batches whose seeds agree by chance. So seeds are
    taken to scatter alike at every batch, as single runs are, and an error to be that scatter over the root of
    dof + 1 seeds. A censored observation takes the largest.
    """
    known = [(run.se_log, run.se_dof) for run in runs if run.se_log is not None and not run.censored]
    if not known:
        return None
    guessed = [(error, dof) for error, dof in known if dof is not None]
    freedom = sum(dof for _, dof in guessed)
    scatter = math.sqrt(sum(dof * (dof + 1) * error**2 for error, dof in guessed) / max(freedom, 1))
    errors = [error if dof is None else scatter / math.sqrt(dof + 1) for error, dof in known]
    reached = iter(errors)
    return np.array([max(errors) if run.censored else next(reached) for run in runs])
