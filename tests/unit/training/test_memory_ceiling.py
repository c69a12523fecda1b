"""The largest micro batch of a device by prediction: one more would not fit."""

from __future__ import annotations

import pytest
from test_memory_prediction import RESNET, spec_of

from orchestrator.training.memory_ceiling import memory_ceiling, with_micro_batch
from orchestrator.training.memory_prediction import predict_memory
from orchestrator.training.registry import load_task

MIB = 2**20


@pytest.mark.parametrize(
    ("task", "device_bytes", "saved"),
    [("digits", 4 * MIB, None), ("bytes", 32 * MIB, None), (RESNET, 64 * MIB, None), (RESNET, 64 * MIB, "Residual")],
)
def test_the_answer_fits_and_one_more_does_not(task: str, device_bytes: int, saved: str | None) -> None:
    spec, loaded = spec_of(task, micro=1, saved=saved), load_task(task, {})
    found = memory_ceiling(spec, loaded, device_bytes, cap=100_000)
    room = 0.85 * device_bytes
    assert found.micro_batch > 1
    assert not found.capped
    assert predict_memory(with_micro_batch(spec, found.micro_batch), loaded).peak_bytes <= room
    more = predict_memory(with_micro_batch(spec, found.micro_batch + 1), loaded)
    assert more.peak_bytes > room
    assert found.model.worst_error < 0.1
    assert len(found.uses) <= 12


def test_no_more_than_the_data_and_nothing_where_nothing_fits() -> None:
    spec, task = spec_of(micro=1), load_task("digits", {})
    capped = memory_ceiling(spec, task, 1000 * MIB, cap=359)
    assert (capped.micro_batch, capped.capped) == (359, True)
    assert memory_ceiling(spec, task, 30_000, cap=359).micro_batch == 0
    assert memory_ceiling(spec, task, 1000 * MIB, cap=1).micro_batch == 1
