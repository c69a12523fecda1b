"""The memory model: lines, bent lines, and the largest micro batch of a device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.memory import MemoryModel, accumulation_finding, fit_memory

GIB = 2**30


@given(st.integers(1, 10**10), st.integers(1, 10**8), st.floats(0.0, 0.5))
def test_the_largest_fits_and_one_more_does_not(fixed: int, per_sample: int, margin: float) -> None:
    model = MemoryModel(fixed_bytes=fixed, per_sample_bytes=per_sample)
    device = fixed / (1 - margin) + 1000 * per_sample
    found = model.largest(device, margin=margin)
    assert found is not None
    assert model.peak(found) <= device * (1 - margin) * (1 + 1e-9) < model.peak(found + 1) * (1 + 1e-9)


def test_a_line_is_found_behind_a_flat_start() -> None:
    peaks = {m: max(5000.0, 4000.0 + 100.0 * m) for m in (1, 2, 4, 8, 16, 32)}
    model = fit_memory(peaks)
    assert (model.fixed_bytes, model.per_sample_bytes, model.least_bytes) == (4000.0, 100.0, 5000.0)
    assert model.worst_error < 1e-9


def test_a_device_too_small_for_one_sample_and_memory_that_does_not_grow() -> None:
    model = MemoryModel(fixed_bytes=70 * GIB, per_sample_bytes=GIB)
    assert model.largest(80 * GIB) == 0
    assert model.largest(80 * GIB, margin=0.1) == 2
    assert MemoryModel(fixed_bytes=GIB, per_sample_bytes=0.0).largest(2 * GIB) is None
    with pytest.raises(ValueError, match="margin = 1: must be at least 0 and below 1"):
        model.largest(80 * GIB, margin=1)


def test_growth_with_accumulation_is_a_finding() -> None:
    assert accumulation_finding({1: 100.0, 2: 100.0, 8: 100.5}) is None
    assert "1,500 bytes at 8 against 1,000 at 2" in (accumulation_finding({2: 1000.0, 4: 1200.0, 8: 1500.0}) or "")
