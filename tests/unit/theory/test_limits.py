"""What limits an update, in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.limits import Roofline, what_limits

DEVICE = Roofline(flops_per_s=1e12, bytes_per_s=1e11)


@pytest.mark.parametrize(
    ("shares", "by"),
    [
        ({"data": 0.6, "communication": 0.1, "overhead": 0.1}, "data"),
        ({"data": 0.1, "communication": 0.6, "overhead": 0.1}, "communication"),
        ({"data": 0.1, "communication": 0.1, "overhead": 0.6}, "launch overhead"),
        ({"data": 0.1, "communication": 0.1, "overhead": 0.1}, "work"),
    ],
)
def test_the_largest_share_limits(shares: dict[str, float], by: str) -> None:
    found = what_limits(**shares)
    assert found.by == by
    assert found.answer.startswith(f"{by} limits: ")
    assert sum(found.shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(("intensity", "by"), [(30.0, "compute"), (3.0, "memory bandwidth")])
def test_work_is_told_apart_by_the_roofline(intensity: float, by: str) -> None:
    found = what_limits(data=0.0, communication=0.1, overhead=0.1, intensity=intensity, device=DEVICE)
    assert found.by == by
    assert f"{intensity:.3g} operations a byte, and the device turns at 10" in found.answer


@given(st.floats(1e-3, 1e6))
def test_the_roof_is_the_lower_of_two(intensity: float) -> None:
    assert DEVICE.attainable(intensity) <= DEVICE.flops_per_s
    assert DEVICE.attainable(intensity) <= intensity * DEVICE.bytes_per_s


def test_shares_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 0, and all at most 1"):
        what_limits(data=0.7, communication=0.7, overhead=0.0)
    with pytest.raises(ValueError, match="flops_per_s = 0"):
        Roofline(flops_per_s=0, bytes_per_s=1)
