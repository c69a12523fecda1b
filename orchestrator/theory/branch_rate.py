"""A branch: training that goes on from a checkpoint at another batch, and how fast its loss falls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.theory._checks import whole
from orchestrator.theory.fieller import Array
from orchestrator.theory.local_parabola import Curve
from orchestrator.theory.target_crossing import OVERSHOOT, expected_crossing

NOT_BELOW = "two thirds into the branches the loss is not below that of the checkpoint at every batch"
SETTLE = 0.25
"""Share of a branch that is left out of its rate: the loss first finds the noise level of the new batch and rate."""


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One run from the checkpoint on.

    Attributes:
        global_batch: B, samples.
        seed: of its sample order.
        samples: seen since the checkpoint at each evaluation, ascending, >= 0.
        losses: at these; the same length. Empty with `samples` for a branch that diverged.
    """

    global_batch: int
    seed: int
    samples: tuple[float, ...]
    losses: tuple[float, ...]

    def __post_init__(self) -> None:
        whole("global_batch", self.global_batch)
        if len(self.samples) != len(self.losses):
            raise ValueError(f"{len(self.samples)} samples, {len(self.losses)} losses: must be of equal length")
        if (
            any(b <= a for a, b in zip(self.samples, self.samples[1:], strict=False))
            or min(self.samples, default=0) < 0
        ):
            raise ValueError("samples: must ascend from 0 or later")


@dataclass(frozen=True, kw_only=True)
class BatchRate:
    """How fast the log excess loss falls at one batch.

    Attributes:
        global_batch: B, samples.
        rate: mean over the seeds, e-folds a sample; None where it was not used for the fit.
        se: standard error by the seeds; None with one.
        seeds: branches.
    """

    global_batch: int
    rate: float | None
    se: float | None
    seeds: int


def rate(branch: Branch, *, floor: float = 0.0, settle: float = SETTLE) -> float:
    """Least-squares slope of -ln(loss - floor) against samples, without the first share `settle` of the branch.

    Raises:
        ValueError: fewer than 3 evaluations are left, or a loss is not above `floor`.

    >>> round(rate(Branch(global_batch=8, seed=0, samples=(0, 8, 16, 24), losses=(4.0, 2.0, 1.0, 0.5))) * 8, 6)
    0.693147
    """
    x, y = log_excess(branch, floor)
    kept = x >= settle * (x[-1] if len(x) else 0.0)
    if np.sum(kept) < 3:
        raise ValueError(
            f"batch {branch.global_batch}: {np.sum(kept)} evaluations in the branch, at least 3 are needed. "
            "Evaluate more often, or branch longer"
        )
    x, y = x[kept] - np.mean(x[kept]), y[kept] - y[kept][0]  # a loss at rest has a rate of exactly 0
    return float(-np.sum(x * y) / np.sum(x * x))


def rates_above(floor: float, branches: Mapping[int, Sequence[Branch]], settle: float) -> dict[int, list[float] | str]:
    """`rate` of each branch by batch, a seed each; in place of rates the reason why there are none.

    Args:
        floor: of the loss; every loss of the branches lies above it.
        branches: by batch, one or more seeds each.
        settle: as of `rate`.
    """
    found: dict[int, list[float] | str] = {}
    for batch, group in branches.items():
        try:
            found[batch] = [rate(one, floor=floor, settle=settle) for one in group]
        except ValueError as error:
            found[batch] = f"not determined: {error}"
    return found


def rates_to_a_level(branches: Mapping[int, Sequence[Branch]]) -> tuple[dict[int, list[float] | str], bool]:
    """How fast each batch gets from the checkpoint to the lowest loss that all of them get well past, a seed each.

    The samples to a given loss (`target_crossing`) do not change with the loss's floor, which on most tasks nobody
    knows: another floor changes the rates of all batches by one factor. A slope over the whole branch has no such luck,
    since the branches at small batches get further down.

    Args:
        branches: by batch, one or more seeds each; each evaluated at the checkpoint (samples 0), none of them empty,
            with losses that fall.

    Returns:
        By batch, in place of rates the reason why there are none; and whether they are e-folds a sample. Where a loss
        is not above 0 there are no e-folds, and a rate is one over the samples to that loss.

    Raises:
        ValueError: a branch has no evaluation at the checkpoint.
    """
    for batch, group in branches.items():
        if any(branch.samples[0] != 0 for branch in group):
            raise ValueError(f"batch {batch}: a branch without its loss at the checkpoint. Give it at samples 0")
    length = min(branch.samples[-1] for group in branches.values() for branch in group)
    start = float(np.mean([branch.losses[0] for group in branches.values() for branch in group]))
    level = max(
        float(np.mean([np.interp(length / OVERSHOOT, branch.samples, branch.losses) for branch in group]))
        for group in branches.values()
    )
    in_folds = min(start, level) > 0.0
    folds = math.log(start / level) if in_folds else 1.0
    found: dict[int, list[float] | str] = {}
    for batch, group in branches.items():
        curves = [Curve(samples=np.array(b.samples), values=np.array(b.losses)) for b in group]
        crossing = expected_crossing(curves, level, "min")
        found[batch] = [folds / samples for samples in crossing.seed_samples] or crossing.reason or NOT_BELOW
    return found, in_folds


def log_excess(branch: Branch, floor: float) -> tuple[Array, Array]:
    """Samples and ln(loss - floor) of the branch, both ``[n]``; ValueError where a loss is not above `floor`."""
    x, losses = np.asarray(branch.samples, dtype=np.float64), np.asarray(branch.losses, dtype=np.float64)
    if not np.all(losses > floor):
        raise ValueError(
            f"batch {branch.global_batch}: loss {float(np.min(losses)):.6g} is not above the floor {floor:.6g}. "
            "Give a lower floor"
        )
    return x, np.log(losses - floor)


def batch_rate(batch: int, found: Sequence[float], seeds: int) -> BatchRate:
    """What the rates of one batch, a seed each, say together; none were found where they are not used."""
    return BatchRate(
        global_batch=batch,
        rate=float(np.mean(found)) if found else None,
        se=float(np.std(found, ddof=1)) / math.sqrt(len(found)) if len(found) > 1 else None,
        seeds=seeds,
    )
