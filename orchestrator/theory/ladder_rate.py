"""Which learning rate to try first at a batch, from the best ones of other batches: saturating power laws, averaged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

POWERS = (0.25, 0.5, 0.75, 1.0)
"""0.5 is Adam's and 1 SGD's far below the noise scale (McCandlish 2018, Malladi 2022); those between hedge."""
MODEL_SD = 0.1
"""How far, in ln(lr), the best learning rate may lie from such a law."""
HINT_SD = 1.5
"""Of ln(noise scale / critical batch): published ratios spread by a factor of about 4."""


@dataclass(frozen=True, kw_only=True)
class KnownLr:
    """The best learning rate at one batch as far as it is known: ln(lr) and its standard error."""

    global_batch: int
    log_lr: float
    se_log: float


@dataclass(frozen=True, kw_only=True)
class Guess:
    """ln(lr), and the standard deviation of that guess."""

    log_lr: float
    sd: float


def guess_lr(known: Sequence[KnownLr], global_batch: int, noise_scale: float | None = None) -> Guess:
    r"""The best learning rate at `global_batch`, by the average of all laws weighted by how well they fit.

    .. math:: \ln lr = c - p \ln(1 + B_0 / B)

    with c free, p in `POWERS` and B_0 from far below to far above the batches. p = 1 is the form of McCandlish et al.
    2018 (arXiv:1812.06162), equation 2.6; a pure power law and a constant are its limits. Of two laws that fit alike
    neither is preferred, so the guess far from what is known is wide.

    Args:
        known: at least one; the standard error of each is increased by `MODEL_SD`.
        global_batch: where to guess.
        noise_scale: a hint of B_0, if it was measured.

    Raises:
        ValueError: if nothing is known.

    >>> known = [KnownLr(global_batch=b, log_lr=math.log(0.1 / (1 + 64 / b)), se_log=0.02) for b in (4, 16, 64)]
    >>> found = guess_lr(known, 256)
    >>> 0.07 < math.exp(found.log_lr) < 0.12, 0.2 < found.sd < 0.3  # 0.08 was planted
    (True, True)
    """
    if not known:
        raise ValueError("known = []: the best learning rate of at least one batch is needed")
    batch = np.array([point.global_batch for point in known], dtype=np.float64)
    log_lr = np.array([point.log_lr for point in known])
    weight = 1.0 / (np.array([point.se_log for point in known]) ** 2 + MODEL_SD**2)
    every = np.append(batch, float(global_batch))
    scale = np.exp(np.linspace(math.log(np.min(every)) - 4.0, math.log(np.max(every)) + 4.0, 61))
    power = np.array(POWERS)[:, None]
    form = -power[..., None] * np.log1p(scale[None, :, None] / batch)
    level = np.sum(weight * (log_lr - form), axis=-1) / np.sum(weight)
    squares = np.sum(weight * (log_lr - level[..., None] - form) ** 2, axis=-1)
    log_share = -0.5 * squares
    if noise_scale is not None:
        log_share = log_share - 0.5 * (np.log(scale / noise_scale) / HINT_SD) ** 2
    share = np.exp(log_share - np.max(log_share))
    share /= np.sum(share)
    at = level - power * np.log1p(scale / global_batch)
    mean = float(np.sum(share * at))
    spread = float(np.sum(share * (at - mean) ** 2)) + 1.0 / float(np.sum(weight)) + MODEL_SD**2
    return Guess(log_lr=mean, sd=math.sqrt(spread))
