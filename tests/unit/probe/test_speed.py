"""What timings tell: planted knees, scaling, the price of accumulation and savings are found again."""

from __future__ import annotations

import pytest
from records import seconds, timed

from orchestrator.probe import speed
from orchestrator.theory.geometry import Geometry
from orchestrator.theory.throughput import StepTimeModel

LADDER = [2**k for k in range(11)]
ALL = [
    *(Geometry(micro_batch=m) for m in LADDER),
    *(Geometry(micro_batch=m, world_size=2) for m in LADDER),
    *(Geometry(micro_batch=1024 // a, accumulation=a) for a in (2, 4, 8)),
    *(Geometry(micro_batch=1024 // a, accumulation=a, world_size=2) for a in (2, 4)),
]


def test_planted_knees_are_found_for_each_number_of_workers() -> None:
    one, two = speed.knees(speed.timed_of(timed(ALL)))
    assert one["doubling"]["value"] == pytest.approx(112.0)
    assert one["ceiling"]["value"] == pytest.approx(864.0)
    assert (one["world_size"], two["world_size"]) == (1, 2)
    assert two["most_per_s"]["value"] == pytest.approx(2000.0)
    noisy = speed.knees(speed.timed_of(timed(ALL, noise=0.05)))[0]
    assert noisy["doubling"]["low"] < 112 < noisy["doubling"]["high"]


def test_efficiency_is_of_the_same_work() -> None:
    found = speed.scaling(speed.timed_of(timed(ALL)))
    weak = {one["micro_batch"]: one["efficiency"]["value"] for one in found["weak"]}
    alone, both = seconds(Geometry(micro_batch=64)), seconds(Geometry(micro_batch=64, world_size=2))
    assert weak[64] == pytest.approx(alone / both)
    strong = {one["global_batch"]: one["efficiency"]["value"] for one in found["strong"]}
    assert strong[128] == pytest.approx(seconds(Geometry(micro_batch=128)) / both / 2)
    assert 2048 not in strong  # one worker was not timed with it


def test_accumulation_in_place_of_memory_costs_its_passes() -> None:
    found = speed.accumulation(speed.timed_of(timed(ALL)))
    (four,) = [one for one in found if (one["accumulation"], one["world_size"]) == (4, 1)]
    assert four["global_batch"] == 1024
    assert four["time"]["value"] == pytest.approx((4 * 0.096 + 1.024) / (0.096 + 1.024))


def test_rounds_in_which_the_machine_was_slow_do_not_tell_geometries_apart() -> None:
    events = timed([Geometry(micro_batch=8), Geometry(micro_batch=16)], noise=0.0)
    for event in events:
        event["step_s"] = [s * (1 + 3 * event["asked"]["round"]) for s in event["step_s"]]
    small, large = speed.timed_of(events).values()
    assert speed.compared(large, small).value == pytest.approx(0.112 / 0.104)
    assert speed.compared(large, small).high == pytest.approx(0.112 / 0.104)
    assert large.step_s.high > 3 * large.step_s.low  # type: ignore[operator]


def test_what_limits_is_told_for_small_and_large_micro_batches() -> None:
    found = speed.timed_of(timed(ALL))
    model = speed.fitted(found)
    assert isinstance(model, StepTimeModel)
    rows = [one for one in speed.limits(found, model, {}, None) if one["world_size"] == 1]
    assert rows[0]["by"] == "launch overhead"
    assert rows[-1]["by"] == "work"
    for row in rows:
        assert sum(row["shares"].values()) == pytest.approx(1.0)


def test_a_variant_is_told_apart_and_what_did_not_fit_is_left_out() -> None:
    events = timed([Geometry(micro_batch=8)]) + timed([Geometry(micro_batch=8)], lambda g: 1.0, variant="bf16")
    events[0] |= {"error": "forward: out of memory", "step_s": []}
    assert speed.timed_of(events)[Geometry(micro_batch=8)].medians == {1: pytest.approx(0.104), 2: pytest.approx(0.104)}
    assert speed.timed_of(events, "bf16")[Geometry(micro_batch=8)].medians[0] == 1.0
