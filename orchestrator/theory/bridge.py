"""The efficient batch and the batch of the best quality: what bridges them, or the plain verdict that nothing does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.theory._checks import whole
from orchestrator.theory.batch_plan import InfeasiblePlan, plan
from orchestrator.theory.critical_batch import Estimate
from orchestrator.theory.doubling import samples_growth
from orchestrator.theory.geometry import Geometry

MOST_LOST = 0.2
"""Share of samples that a larger batch may cost and still count as bridged, as in the 20 % of Zhang 2024."""

By = Literal["same", "accumulation", "fewer workers", "learning rate", "nothing"]


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """How to have both.

    Attributes:
        by: what bridges the two batches.
        geometry: what to run; None where nothing bridges them.
        samples: factor on samples to the target against the batch of the best quality, where the batch is larger.
        answer: in a sentence.
    """

    by: By
    geometry: Geometry | None
    samples: Estimate
    answer: str


def bridge(efficient: Geometry, quality_batch: int, critical_batch: Estimate) -> Bridge:
    """What lets the efficient geometry train at, or as well as, the batch of the best quality.

    A larger batch of quality is reached by accumulation, and a smaller one by fewer workers, both at the efficient
    micro batch and without any loss. Else the efficient batch is kept with its learning rate, if it costs at most
    `MOST_LOST` more samples even at the end of the critical batch's interval.

    Args:
        efficient: the geometry of the best throughput for its devices; its micro batch is the efficient one.
        quality_batch: global batch of the best quality, samples.
        critical_batch: samples, with its interval; ends that are None are open.

    >>> few = Estimate(value=500.0, low=400.0, high=650.0)
    >>> print(bridge(Geometry(micro_batch=32, world_size=2), 256, few).answer)
    accumulation bridges them: 256 = micro 32 x accumulation 4 x world 2
    >>> print(bridge(Geometry(micro_batch=32, world_size=8), 64, few).answer)
    fewer workers bridge them: 64 = micro 32 x accumulation 1 x world 2, which leaves 6 of 8 workers free
    >>> print(bridge(Geometry(micro_batch=512), 64, few).answer)
    nothing bridges them: batch 512 is efficient and costs 79 % more samples than batch 64 (63 to 97 % more)
    """
    whole("quality_batch", quality_batch)
    micro, world, batch = efficient.micro_batch, efficient.world_size, efficient.global_batch
    nothing_lost = Estimate(value=1.0, low=1.0, high=1.0)
    if quality_batch == batch:
        return Bridge(by="same", geometry=efficient, samples=nothing_lost, answer=f"they are the same: {efficient}")
    if quality_batch > batch:
        return _accumulated(efficient, quality_batch, nothing_lost)
    passes, rest = divmod(quality_batch, micro)
    if rest == 0:
        workers = max(w for w in range(1, world + 1) if passes % w == 0)
        nodes = min(efficient.nodes, workers)
        fewer = Geometry(micro_batch=micro, accumulation=passes // workers, world_size=workers, nodes=nodes)
        if workers == world:
            answer = f"less accumulation bridges them: {fewer}"
            return Bridge(by="accumulation", geometry=fewer, samples=nothing_lost, answer=answer)
        answer = f"fewer workers bridge them: {fewer}, which leaves {world - workers} of {world} workers free"
        return Bridge(by="fewer workers", geometry=fewer, samples=nothing_lost, answer=answer)
    samples = samples_growth(quality_batch, batch, critical_batch)
    if samples.high is not None and samples.high <= 1.0 + MOST_LOST:
        answer = (
            f"the learning rate bridges them: batch {batch} with its own rate needs at most "
            f"{100 * (samples.high - 1):.0f} % more samples than batch {quality_batch}"
        )
        return Bridge(by="learning rate", geometry=efficient, samples=samples, answer=answer)
    return Bridge(by="nothing", geometry=None, samples=samples, answer=_verdict(batch, quality_batch, samples))


def _accumulated(efficient: Geometry, quality_batch: int, nothing_lost: Estimate) -> Bridge:
    try:
        split = plan(quality_batch, efficient.world_size, micro_batch_max=efficient.micro_batch)
    except InfeasiblePlan as error:
        answer = f"nothing bridges them exactly: {error}"
        return Bridge(by="nothing", geometry=None, samples=nothing_lost, answer=answer)
    found = Geometry(
        micro_batch=split.micro_batch,
        accumulation=split.accumulation,
        world_size=split.world_size,
        nodes=efficient.nodes,
    )
    smaller = split.micro_batch < efficient.micro_batch
    note = f"; {split.micro_batch} is the largest micro batch up to {efficient.micro_batch} that divides it"
    answer = f"accumulation bridges them: {found}{note if smaller else ''}"
    return Bridge(by="accumulation", geometry=found, samples=nothing_lost, answer=answer)


def _verdict(batch: int, quality_batch: int, samples: Estimate) -> str:
    head = f"nothing bridges them: batch {batch} is efficient"
    if samples.value is None or samples.low is None or samples.high is None:
        return f"{head}, and what it costs in samples against batch {quality_batch} is not determined"
    value, low, high = (f"{100 * (end - 1):.0f}" for end in (samples.value, samples.low, samples.high))
    return f"{head} and costs {value} % more samples than batch {quality_batch} ({low} to {high} % more)"
