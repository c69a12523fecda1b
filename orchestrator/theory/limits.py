"""What limits an update's speed, in words, from where its time goes and how much it computes for each byte it moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.theory._checks import positive

Limit = Literal["data", "communication", "launch overhead", "compute", "memory bandwidth", "work"]

_REMEDY: dict[str, str] = {
    "data": "add loader processes, or make samples cheaper to read",
    "communication": "raise the micro batch or the accumulation, so that an update is summed less often",
    "launch overhead": "raise the micro batch: a pass costs about as much with more samples in it",
    "compute": "a larger micro batch gains little; lower precision would",
    "memory bandwidth": "a larger micro batch gains only while weights are most of what is moved; fusing would",
    "work": "measure the device's arithmetic and memory speed to tell computing from moving bytes",
}


@dataclass(frozen=True, kw_only=True)
class Limited:
    """The verdict.

    Attributes:
        by: what limits.
        shares: of an update's time: ``data``, ``communication``, ``launch overhead`` and ``work``, together 1.
        answer: verdict, evidence and remedy in a sentence.
    """

    by: Limit
    shares: dict[str, float]
    answer: str


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """A device: floating-point operations a second and bytes a second that it reaches, and the ridge between them.

    Source: Williams, Waterman & Patterson 2009, "Roofline: An Insightful Visual Performance Model for Multicore
    Architectures" (Communications of the ACM 52(4)).

    >>> device = Roofline(flops_per_s=1e12, bytes_per_s=1e11)
    >>> device.ridge, device.attainable(5.0)
    (10.0, 500000000000.0)
    """

    flops_per_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        positive("flops_per_s", self.flops_per_s)
        positive("bytes_per_s", self.bytes_per_s)

    @property
    def ridge(self) -> float:
        """Operations a byte from which on arithmetic limits instead of memory."""
        return self.flops_per_s / self.bytes_per_s

    def attainable(self, intensity: float) -> float:
        """Operations a second at most, for so many operations a byte."""
        return min(self.flops_per_s, intensity * self.bytes_per_s)


def what_limits(
    *,
    data: float,
    communication: float,
    overhead: float,
    intensity: float | None = None,
    device: Roofline | None = None,
) -> Limited:
    """The largest of four shares of an update's time; where work is the largest, its kind by the roofline.

    Args:
        data: share of the time spent waiting for data, in [0, 1].
        communication: share that communication adds (`StepTimeModel.communication_share`).
        overhead: share that a pass costs however few samples it holds (`StepTimeModel.overhead_share`).
        intensity: operations a byte moved, of the whole update.
        device: what the device reaches.

    Raises:
        ValueError: for shares below 0, or above 1 together.

    >>> print(what_limits(data=0.1, communication=0.05, overhead=0.6).answer)
    launch overhead limits: 60 % of an update's time, with data 10 %, communication 5 %, work 25 %. Raise the micro \
batch: a pass costs about as much with more samples in it
    """
    shares = {"data": data, "communication": communication, "launch overhead": overhead}
    if min(shares.values()) < 0 or sum(shares.values()) > 1 + 1e-9:
        raise ValueError(f"shares of an update's time: {shares}: each must be at least 0, and all at most 1")
    shares["work"] = max(0.0, 1.0 - sum(shares.values()))
    largest = max(shares, key=lambda name: shares[name])
    by: Limit = "work"
    evidence = ""
    if largest != "work":
        by = largest  # type: ignore[assignment]
    elif intensity is not None and device is not None:
        by = "compute" if intensity >= device.ridge else "memory bandwidth"
        evidence = f"; {intensity:.3g} operations a byte, and the device turns at {device.ridge:.3g}"
    others = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items() if name != largest)
    share = f"{100 * shares[largest]:.0f} % of an update's time"
    what = share if largest != "work" else f"work is {share}"
    remedy = _REMEDY[by]
    answer = f"{by} limits: {what}, with {others}{evidence}. {remedy[0].upper()}{remedy[1:]}"
    return Limited(by=by, shares=shares, answer=answer)
