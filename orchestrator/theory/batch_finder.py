"""The search for the largest micro batch that fits: what to try next, from what every rank saw of the tries before.

It decides and never acts: whoever drives it makes the tries, each in a fresh process or with proof that memory is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.theory._checks import whole

LEFT_OVER = 0.01
"""Share of memory by which a try may leave more behind than it found."""

Verdict = Literal["found", "does not fit", "failed"]


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to try on all ranks at once: training updates in such micro batches, then an evaluation.

    `updates` is 0 where only the evaluation is tried again, with the optimizer's state in place.
    """

    micro_batch: int
    eval_batch: int
    updates: int


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What one rank saw of a try.

    Attributes:
        fits: whether everything went through.
        out_of_memory: whether it did not for want of memory, and nothing else.
        evaluating: whether it failed in the evaluation, after all updates.
        message: the original error.
        rows: samples in the first batch that the loader gave; None if it gave none.
        held_before_bytes: memory held by the process before the try; 0 in a fresh process.
        held_after_bytes: held after it, all of it given back.
        peak_bytes: the most that was held; 0 where it was not measured.
    """

    fits: bool
    out_of_memory: bool = False
    evaluating: bool = False
    message: str = ""
    rows: int | None = None
    held_before_bytes: int = 0
    held_after_bytes: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One try and what all ranks together make of it; `error` names the rank."""

    order: Order
    fits: bool
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The end of a search. Without a micro batch, `reason` carries the original error."""

    verdict: Verdict
    micro_batch: int | None
    eval_batch: int
    tries: tuple[Tried, ...]
    reason: str = ""


class BatchFinder:
    """Doubling from `start` until it no longer fits or the data end, or halving until it does; then bisection.

    Args:
        cap: the most samples a worker may put in a micro batch: its share of the data.
        start: the first micro batch, in samples.
        unit: the answer is a multiple of it.
        refine: whether to look between the last that fits and the first that does not.
        eval_batch: samples in an evaluation batch; halved where only the evaluation does not fit.
        updates: whole updates a try makes: the optimizer's state exists from the second on.
        confirm: try the answer once more where the last try failed, for tries that share a process.

    Raises:
        ValueError: for a count below 1, or a `cap` below `unit`.
    """

    def __init__(
        self,
        *,
        cap: int,
        start: int = 1,
        unit: int = 1,
        refine: bool = True,
        eval_batch: int = 256,
        updates: int = 3,
        confirm: bool = False,
    ) -> None:
        given = {"cap": cap, "start": start, "unit": unit, "eval_batch": eval_batch, "updates": updates}
        for name, value in given.items():
            whole(name, value)
        if cap < unit:
            raise ValueError(f"cap = {cap}: a worker's share of the data must hold one unit of {unit} samples")
        self._most, self._unit, self._refine, self._updates = cap // unit * unit, unit, refine, updates
        self._confirm = confirm
        self._fits, self._fails = 0, self._most + unit  # the bounds; the upper one is impossible for want of data
        self._failed = False  # whether memory set the upper bound
        self._tries: list[Tried] = []
        self.found: Found | None = None
        self._eval_batch = eval_batch
        first = max(unit, min(start // unit * unit, self._most))
        self._order = Order(micro_batch=first, eval_batch=eval_batch, updates=updates)

    def next(self) -> Order | None:
        """What to try, or None where the search is over."""
        return None if self.found else self._order

    def tell(self, sights: Sequence[Sight]) -> None:
        """Take what every rank saw of the order at hand, by rank; the answer is the same wherever it is computed."""
        order = self._order
        wrong = _broken(order, sights)
        failed = [(rank, sight) for rank, sight in enumerate(sights) if not sight.fits]
        error = "; ".join(f"rank {rank}: {sight.message}" for rank, sight in failed)
        self._tries.append(Tried(order=order, fits=not failed and not wrong, error=error or wrong))
        if wrong:
            self._end("failed", wrong)
        elif any(not sight.evaluating for _, sight in failed):
            self._fails, self._failed = order.micro_batch, True
            self._go_on(error)
        elif failed:
            self._lower_evaluation(error)
        else:
            self._fits = order.micro_batch
            self._go_on(error)

    def _go_on(self, error: str) -> None:
        unit, fits, fails = self._unit, self._fits, self._fails
        micro: int | None = None
        if fits and not self._failed:
            micro = min(2 * fits, self._most) if fits < self._most else None
        elif not fits:
            if fails == unit:
                self._end("does not fit", f"micro batch {unit} does not fit in memory: {error}")
                return
            micro = max(unit, fails // 2 // unit * unit)
        elif self._refine and fails - fits > unit:
            micro = (fits + fails) // 2 // unit * unit
        if micro is None and self._confirm and not self._tries[-1].fits:
            micro = fits
        if micro is None:
            self._end("found", "" if self._failed else f"all {fits} samples that a worker may take at once fit")
        else:
            self._order = Order(micro_batch=micro, eval_batch=self._eval_batch, updates=self._updates)

    def _lower_evaluation(self, error: str) -> None:
        """The updates went through, and are not repeated."""
        if self._eval_batch == 1:
            self._end("does not fit", f"an evaluation batch of 1 sample does not fit in memory: {error}")
            return
        self._eval_batch //= 2
        self._order = Order(micro_batch=self._order.micro_batch, eval_batch=self._eval_batch, updates=0)

    def _end(self, verdict: Verdict, reason: str) -> None:
        micro = self._fits if verdict == "found" else None
        self.found = Found(
            verdict=verdict,
            micro_batch=micro,
            eval_batch=self._eval_batch,
            tries=tuple(self._tries),
            reason=reason,
        )


def find_micro_batch(try_on_all_ranks: Callable[[Order], Sequence[Sight]], finder: BatchFinder) -> Found:
    """Drive `finder` to its end.

    >>> def limit_100(order):
    ...     fits = order.micro_batch <= 100
    ...     return [Sight(fits=fits, out_of_memory=not fits, message="" if fits else "out of memory")]
    >>> found = find_micro_batch(limit_100, BatchFinder(cap=10_000, start=128))
    >>> found.micro_batch, len(found.tries)
    (100, 8)
    """
    while (order := finder.next()) is not None:
        finder.tell(try_on_all_ranks(order))
    assert finder.found is not None
    return finder.found


def _broken(order: Order, sights: Sequence[Sight]) -> str:
    """Why a try tells nothing about memory; empty if it does."""
    for rank, sight in enumerate(sights):
        if not sight.fits and not sight.out_of_memory:
            return f"rank {rank}: {sight.message}"
        if sight.rows is not None and sight.rows != order.micro_batch:
            return (
                f"rank {rank}: the loader gave {sight.rows} samples where a micro batch of {order.micro_batch} was "
                "tried: the size does not reach it"
            )
        if sight.held_after_bytes > sight.held_before_bytes * (1.0 + LEFT_OVER):
            return (
                f"rank {rank}: {sight.held_after_bytes:,} bytes were held after the try of micro batch "
                f"{order.micro_batch}, {sight.held_before_bytes:,} before it: later tries would have less. Make each "
                "in a process of its own"
            )
    return ""
