"""Batches out of a task's data: from the process itself, or from worker processes that outlive the trial."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from orchestrator.config.trial import LoaderSpec
from orchestrator.training.requests import Request, reader
from orchestrator.training.seeding import restored_generators
from orchestrator.training.task import Fetchable
from orchestrator.training.workers import worker_pool


def open_loader(data: Any, requests: Iterator[Request], spec: LoaderSpec, *, key: str) -> Iterator[Any]:
    """Batches of `requests`, one by one.

    Args:
        data: `Fetchable`, or a map-style Dataset.
        spec: with ``workers > 0`` the data must be picklable: it travels to the workers when they start.
        key: names the data. A later call with the same key and settings finds the workers already running.
    """
    if spec.workers:
        return worker_pool(data, spec, key).run(requests)
    return _in_process(data, requests, pinned=spec.pin_memory)


def _in_process(data: Any, requests: Iterator[Request], *, pinned: bool) -> Iterator[Any]:
    read = reader(data)
    # `fetch` gets its randomness from Draws; the items of a plain Dataset take theirs from the global generators.
    guard = nullcontext if isinstance(data, Fetchable) else restored_generators
    for request in requests:
        with guard():
            batch = read(request)
        yield pin_memory(batch) if pinned else batch  # type: ignore[no-untyped-call]
