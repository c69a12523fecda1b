"""The learning rate's course and the evaluation points, as functions of samples seen.

Nothing here keeps state: every value follows from absolute counts of samples, so a resume or another split of the
batch gives the same numbers.
"""

from __future__ import annotations

import bisect
import functools
import math

from orchestrator.theory._checks import whole

DECAYS = ("none", "linear", "cosine")


def lr_factor(
    samples_seen: int,
    global_batch: int,
    *,
    budget_samples: int,
    warmup_samples: int = 0,
    decay: str = "none",
    final: float = 0.0,
) -> float:
    r"""Share of the peak learning rate that the update after `samples_seen` uses.

    .. math::
        f(s) = \min\left(1, \frac{s + B}{W}\right) \cdot d(p), \qquad
        p = \min\left(1, \frac{\max(0, s - W)}{N - W}\right)

    with :math:`d(p) = 1` for ``none``, :math:`1 - (1 - f_N) p` for ``linear`` and
    :math:`f_N + (1 - f_N)(1 + \cos \pi p) / 2` for ``cosine`` (Loshchilov and Hutter 2017, without restarts).

    Warmup counts the samples after the update, so that the first update is not spent at 0 and the update that
    completes the warmup is at the peak. Decay counts the samples before the update.

    Args:
        samples_seen: s, samples before this update, >= 0.
        global_batch: B, samples of this update.
        budget_samples: N, samples of the whole run.
        warmup_samples: W, in [0, N]; 0 starts at the peak.
        decay: one of `DECAYS`.
        final: f_N, the share of the peak in [0, 1] that decay ends at, exact for every s >= N. ``none`` ignores it.

    Returns:
        The factor, in [0, 1].

    Raises:
        ValueError: if an argument is out of its range.

    >>> run = dict(budget_samples=6400, decay="linear")
    >>> [lr_factor(s, 64, **run) for s in (0, 3200, 6400)]
    [1.0, 0.5, 0.0]
    >>> [lr_factor(s, 64, warmup_samples=256, **run) for s in (0, 64, 192)]
    [0.25, 0.5, 1.0]
    """
    if samples_seen < 0 or global_batch < 1 or budget_samples < 1:
        raise ValueError(
            f"samples_seen = {samples_seen!r}, global_batch = {global_batch!r}, budget_samples = {budget_samples!r}: "
            "must be at least 0, 1 and 1"
        )
    if not 0 <= warmup_samples <= budget_samples:
        raise ValueError(f"warmup_samples = {warmup_samples!r}: must be within 0 and the budget {budget_samples}")
    if decay not in DECAYS:
        raise ValueError(f"decay = {decay!r}: must be one of {', '.join(DECAYS)}")
    if not 0.0 <= final <= 1.0:
        raise ValueError(f"final = {final!r}: must be a share of the peak, within 0 and 1")

    if samples_seen < warmup_samples:
        return min(1.0, (samples_seen + global_batch) / warmup_samples)
    if decay == "none":
        return 1.0
    if samples_seen >= budget_samples:
        return float(final)
    progress = (samples_seen - warmup_samples) / (budget_samples - warmup_samples)
    left = 1.0 - progress if decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return final + (1.0 - final) * left


def crossed(before: int, after: int, every: int, growth: float = 0.0) -> bool:
    """Whether going from `before` to `after` samples reaches or passes a mark of the evaluation grid.

    Marks are the multiples of `every` samples; with `growth` > 0 they grow apart with the samples seen s, the next one
    after s lying max(`every`, `growth` * s) further, so that a curve is as well resolved wherever it crosses a target.
    A mark that `before` already stands on has been crossed earlier.

    Raises:
        ValueError: if `every` is below 1, `after` below `before`, or `growth` not from 0 to 1.

    >>> [crossed(960, 1024, 1000), crossed(1024, 1088, 1000), crossed(936, 1000, 1000), crossed(1000, 1064, 1000)]
    [True, False, True, False]
    """
    if every < 1 or not 0 <= before <= after or not 0.0 <= growth <= 1.0:
        raise ValueError(
            f"before = {before!r}, after = {after!r}, every = {every!r}, growth = {growth!r}: need "
            "0 <= before <= after, every >= 1, 0 <= growth <= 1"
        )
    if growth == 0.0:
        return after // every > before // every
    marks = _growing_marks(every, growth, 1 << after.bit_length())
    return bisect.bisect_right(marks, after) > bisect.bisect_right(marks, before)


@functools.lru_cache(maxsize=64)
def _growing_marks(every: int, growth: float, until: int) -> tuple[int, ...]:
    """Marks up to the first past `until`: sums of whole numbers, hence the same on every rank."""
    marks = [every]
    while marks[-1] <= until:
        marks.append(marks[-1] + max(every, int(marks[-1] * growth)))
    return tuple(marks)


def evaluation_points(global_batch: int, budget_samples: int, every: int) -> list[int]:
    """Samples seen at each evaluation of a run: after every update that crosses a multiple of `every`, and the last.

    Args:
        global_batch: samples an update.
        budget_samples: samples of the whole run; the last update is the one that reaches or passes it.
        every: samples between evaluations; where it is below `global_batch`, each update is evaluated once.

    Raises:
        ValueError: if an argument is not a whole number of at least 1.

    >>> evaluation_points(64, 4000, 1000)
    [1024, 2048, 3008, 4032]
    >>> evaluation_points(4096, 8192, 1000)
    [4096, 8192]
    """
    for name, value in (("global_batch", global_batch), ("budget_samples", budget_samples), ("every", every)):
        whole(name, value)
    last = -(-budget_samples // global_batch) * global_batch
    points: list[int] = []
    seen = 0
    while seen < last:
        mark = (seen // every + 1) * every
        seen = min(-(-mark // global_batch) * global_batch, last)
        points.append(seen)
    return points


def count_evaluations(global_batch: int, budget_samples: int, every: int) -> int:
    """The length of `evaluation_points`, of which a long run with a short interval has too many to be listed.

    >>> count_evaluations(64, 4000, 1000)
    4
    >>> count_evaluations(64, 10**12, 1)
    15625000000
    """
    updates = -(-budget_samples // global_batch)
    if every <= global_batch:
        return updates
    last = updates * global_batch
    marks = last // every
    return marks + (-(-marks * every // global_batch) * global_batch < last)
