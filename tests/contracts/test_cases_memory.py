"""The search for the largest micro batch: what people found wrong elsewhere, against memory with a known limit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.batch_finder import BatchFinder, Found, Order, Sight, find_micro_batch
from orchestrator.theory.memory import MemoryModel, largest_samples

OUT = Sight(fits=False, out_of_memory=True, message="CUDA out of memory. Tried to allocate 2.00 GiB")


class Memory:
    """Ranks that hold so many samples each; an evaluation batch of so many."""

    def __init__(self, *limits: float, eval_limit: float = float("inf")) -> None:
        self.limits, self.eval_limit = limits, eval_limit
        self.orders: list[Order] = []
        self.updates = 0

    def __call__(self, order: Order) -> list[Sight]:
        self.orders.append(order)
        self.updates += order.updates
        return [self._sight(order, limit) for limit in self.limits]

    def _sight(self, order: Order, limit: float) -> Sight:
        if order.updates and order.micro_batch > limit:
            return OUT
        if order.eval_batch > self.eval_limit:
            return Sight(fits=False, out_of_memory=True, evaluating=True, message=OUT.message)
        return Sight(fits=True, rows=order.micro_batch)


def tried(found: Found) -> list[int]:
    return [one.order.micro_batch for one in found.tries]


def test_the_answer_trains_for_three_updates_and_an_evaluation() -> None:
    # Lightning-AI/pytorch-lightning#8028
    memory = Memory(100)
    found = find_micro_batch(memory, BatchFinder(cap=10_000))
    assert (found.verdict, found.micro_batch, found.eval_batch) == ("found", 100, 256)
    proof = next(one for one in reversed(found.tries) if one.order.micro_batch == 100)
    assert proof.fits
    assert proof.order == Order(micro_batch=100, eval_batch=256, updates=3)


def test_in_a_shared_process_the_answer_is_tried_again_after_the_last_failure() -> None:
    found = find_micro_batch(Memory(100), BatchFinder(cap=10_000, confirm=True))
    assert tried(found)[-2:] == [101, 100]
    assert found.tries[-1].fits


def test_a_try_that_leaves_memory_behind_ends_the_search() -> None:
    # Lightning-AI/pytorch-lightning#8028: later tries had less memory than the first
    def leaky(order: Order) -> list[Sight]:
        fits, base = order.micro_batch <= 100, 10_000
        return [
            Sight(fits=fits, out_of_memory=not fits, held_before_bytes=base, held_after_bytes=base + 150 * (not fits))
        ]

    found = find_micro_batch(leaky, BatchFinder(cap=10_000))
    assert found.verdict == "failed"
    assert "10,150 bytes were held after the try of micro batch 128, 10,000 before it" in found.reason


def test_no_more_than_a_workers_share_of_the_data_is_tried() -> None:
    # Lightning-AI/pytorch-lightning#3259: 67,108,864 reported
    found = find_micro_batch(Memory(*[float("inf")] * 4), BatchFinder(cap=1000 // 4))
    assert found.micro_batch == 250
    assert len(found.tries) <= 9
    assert max(tried(found)) <= 250
    assert found.reason == "all 250 samples that a worker may take at once fit"


def test_a_size_that_does_not_reach_the_loader_is_named() -> None:
    # Lightning-AI/pytorch-lightning#2523: every try "fits"
    found = find_micro_batch(lambda order: [Sight(fits=True, rows=1)], BatchFinder(cap=64))
    assert found.verdict == "failed"
    assert "gave 1 samples where a micro batch of 2 was tried" in found.reason


def test_ranks_with_different_limits_agree() -> None:
    # mosaicml/composer#2117
    found = find_micro_batch(Memory(64, 40), BatchFinder(cap=10_000, start=128, refine=False))
    assert (found.micro_batch, tried(found)) == (32, [128, 64, 32])
    assert find_micro_batch(Memory(64, 40), BatchFinder(cap=10_000, start=128)).micro_batch == 40
    assert found.tries[1].error == f"rank 1: {OUT.message}"


def test_an_evaluation_that_does_not_fit_lowers_the_evaluation_batch_only() -> None:
    # huggingface/transformers#32215
    memory = Memory(64, eval_limit=200)
    found = find_micro_batch(memory, BatchFinder(cap=10_000, start=64, eval_batch=512, refine=False))
    assert (found.micro_batch, found.eval_batch) == (64, 128)
    assert memory.orders[:3] == [
        Order(micro_batch=64, eval_batch=512, updates=3),
        Order(micro_batch=64, eval_batch=256, updates=0),
        Order(micro_batch=64, eval_batch=128, updates=0),
    ]
    assert memory.updates == 6  # 64 once, and 128 once, which does not fit
    hopeless = find_micro_batch(Memory(64, eval_limit=0), BatchFinder(cap=64, start=64, eval_batch=4))
    assert hopeless.verdict == "does not fit"
    assert hopeless.reason.startswith("an evaluation batch of 1 sample does not fit in memory: rank 0: CUDA")


@pytest.mark.parametrize(("unit", "refine", "answer"), [(1, False, 64), (1, True, 100), (8, True, 96)])
def test_the_gap_between_fit_and_failure_is_closed_if_asked(unit: int, refine: bool, answer: int) -> None:
    # huggingface/accelerate#3650: 36 % of throughput lost
    found = find_micro_batch(Memory(100), BatchFinder(cap=10_000, start=128, unit=unit, refine=refine))
    assert found.micro_batch == answer
    assert len(found.tries) <= 2 + 6


@pytest.mark.parametrize(("margin", "answer"), [(0.0, 33), (0.1, 30)])
def test_the_longest_samples_are_tried_with_a_margin(margin: float, answer: int) -> None:
    # OpenNMT/OpenNMT-tf#296: 200 typical samples fit, and the longest come later
    lengths = [20] * 999 + [120]

    def padded(order: Order) -> list[Sight]:
        longest = max(lengths[i] for i in largest_samples(lengths, order.micro_batch))
        fits = order.micro_batch * longest <= 4000 * (1 - margin)
        return [Sight(fits=fits, out_of_memory=not fits, message="" if fits else OUT.message)]

    assert find_micro_batch(padded, BatchFinder(cap=len(lengths))).micro_batch == answer
    assert MemoryModel(fixed_bytes=0, per_sample_bytes=120).largest(4000, margin=margin) == answer


def test_only_true_want_of_memory_is_tried_again() -> None:
    wrong = Sight(fits=False, message="RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    found = find_micro_batch(lambda order: [Sight(fits=True), wrong], BatchFinder(cap=64))
    assert (found.verdict, found.micro_batch, len(found.tries)) == ("failed", None, 1)
    assert found.reason == f"rank 1: {wrong.message}"


def test_the_floor_is_named_with_the_original_error() -> None:
    found = find_micro_batch(Memory(0), BatchFinder(cap=64, start=16))
    assert (found.verdict, found.micro_batch, tried(found)) == ("does not fit", None, [16, 8, 4, 2, 1])
    assert found.reason == f"micro batch 1 does not fit in memory: rank 0: {OUT.message}"


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=4),
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.integers(1, 64),
    st.booleans(),
)
def test_every_search_ends_at_the_least_limit(
    limits: Sequence[int], cap: int, start: int, unit: int, confirm: bool
) -> None:
    unit = min(unit, cap)
    found = find_micro_batch(Memory(*limits), BatchFinder(cap=cap, start=start, unit=unit, confirm=confirm))
    best = min(*limits, cap) // unit * unit
    assert found.micro_batch == (best or None)
    assert found.verdict == ("found" if best else "does not fit")
    assert len(found.tries) <= 30
