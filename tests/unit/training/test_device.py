"""Branches that only a GPU takes, against a small device layer in its place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from fake_cuda import GIB, FakeCuda
from test_memory_prediction import spec_of

from orchestrator.cluster.capacity import Node
from orchestrator.cluster.device_memory import device_memory
from orchestrator.cluster.session import local_node
from orchestrator.errors import ResourceError
from orchestrator.training.batch_try import limited
from orchestrator.training.group import Solo
from orchestrator.training.memory import peak_bytes, release, reset_peak
from orchestrator.training.registry import load_task
from orchestrator.training.roofline import _wait
from orchestrator.training.update_timing import UpdateTimes, time_updates
from orchestrator.training.utilisation import Utilisation, reader_of

GPU, CPU = torch.device("cuda:0"), torch.device("cpu")
PER_WORKER = {"CPU": 1.0, "GPU": 1.0}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


def test_peaks_are_those_of_the_device(cuda: FakeCuda) -> None:
    cuda.peak = 123
    assert peak_bytes(GPU) == 123
    reset_peak(GPU)
    assert peak_bytes(GPU) == 0
    release(GPU)
    assert cuda.calls[-1] == "empty_cache"
    assert peak_bytes(CPU) > 1e7


def test_a_try_may_allocate_its_room_and_later_ones_theirs(cuda: FakeCuda) -> None:
    with limited(GPU, 20 * GIB):
        assert cuda.share == pytest.approx(0.25)
    assert cuda.share == 1.0
    with pytest.raises(torch.OutOfMemoryError):
        _run_out(cuda)
    assert cuda.share == 1.0


def _run_out(cuda: FakeCuda) -> None:
    with limited(GPU, 40 * GIB):
        assert cuda.share == pytest.approx(0.5)
        raise torch.OutOfMemoryError


def test_a_gpu_is_asked_for_its_memory_and_a_cpu_worker_has_its_part(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.cluster.device_memory.is_local", lambda: True)
    assert device_memory([], PER_WORKER, workers=2) == 80 * GIB
    assert device_memory([], {"GPU": 0.5}, workers=2) == 40 * GIB
    assert local_node().resources["GPU"] == 1.0
    node = Node(name="a", resources={"CPU": 4.0, "memory": 12.0 * GIB})
    small = Node(name="b", resources={"CPU": 1.0, "memory": 4.0 * GIB})
    assert device_memory([node, small], {"CPU": 1.0}, workers=2) == 4 * GIB
    assert device_memory([node], {"CPU": 1.0}, workers=3) == 4 * GIB
    with pytest.raises(ResourceError, match=r"cluster\.device_memory"):
        device_memory([Node(name="c", resources={"CPU": 1.0})], {"CPU": 1.0}, workers=1)


def test_how_busy_a_gpu_is_and_that_a_cpu_cannot_be_asked(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    with Utilisation(GPU) as used:
        while len(cuda.calls) < 8:
            time.sleep(0.01)
    assert used.mean is not None
    assert 0.4 <= used.mean <= 0.6
    with Utilisation(CPU) as nothing:
        pass
    assert nothing.mean is None

    def broken(device: torch.device) -> int:
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    monkeypatch.setattr(torch.cuda, "utilization", broken)
    assert reader_of(GPU) is None


def test_clocks_wait_for_the_device(cuda: FakeCuda) -> None:
    _wait(GPU)
    assert cuda.calls == ["synchronize"]
    _wait(CPU)
    assert cuda.calls == ["synchronize"]


def test_only_the_timed_updates_are_watched() -> None:
    inside: list[str] = []

    @contextmanager
    def watch() -> Iterator[None]:
        inside.append("begun")
        yield
        inside.append("over")

    spec = spec_of(micro=8)
    found = time_updates(spec, load_task("digits", spec.task.options), Solo(), updates=2, warmup=1, watch=watch())
    assert isinstance(found, UpdateTimes)
    assert inside == ["begun", "over"]
