"""What is asked of a task's data, and how it answers: one request is one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import default_collate

from orchestrator.training.batches import check_rows
from orchestrator.training.draws import Draws
from orchestrator.training.seeding import seed_everything
from orchestrator.training.stream import Stream, Window
from orchestrator.training.task import Fetchable

Array = np.ndarray[Any, Any]
# Evaluation must not depend on the trial, so items that draw random numbers there are seeded by their id alone.
_EVALUATION_SEED = 0


class Request(NamedTuple):
    """Samples to load: their ids, and the trial's seed and first position, or no seed in evaluation."""

    ids: Array
    seed: int | None
    start: int


def reader(data: Any) -> Callable[[Request], Any]:
    """How `data` answers a request: by its `fetch`, or by the items of a plain Dataset in torch's default collation.

    Before each item of a plain Dataset the global generators are seeded by its position, so that random augmentation
    depends neither on the rank, nor on the loader worker, nor on how the batch is split.
    """
    read = _fetch if isinstance(data, Fetchable) else _collate

    def answer(request: Request) -> Any:
        batch = read(data, request)
        check_rows(batch, len(request.ids))
        return batch

    return answer


def _fetch(data: Fetchable, request: Request) -> Any:
    ids, seed, start = request
    return data.fetch(ids, None if seed is None else Draws(seed, np.arange(start, start + len(ids))))


def _collate(data: Any, request: Request) -> Any:
    ids, seed, start = request
    if seed is None:
        draws = Draws(_EVALUATION_SEED, ids)
    else:
        draws = Draws(seed, np.arange(start, start + len(ids)))
    items = []
    for index, item_seed in zip(ids.tolist(), draws.seeds().tolist(), strict=True):
        seed_everything(item_seed)
        items.append(data[index])
    return default_collate(items)


def training_requests(stream: Stream, windows: Iterable[Window]) -> Iterator[Request]:
    """What a rank trains on, in order."""
    for start, stop in windows:
        yield Request(stream.ids(start, stop), stream.seed, start)


def evaluation_requests(size: int, batch: int, rank: int, world_size: int) -> Iterator[Request]:
    """The batches ``[0:batch]``, ``[batch:2 batch]``, ... of `size` samples that fall to `rank`, dealt in turn."""
    for start in range(rank * batch, size, world_size * batch):
        yield Request(np.arange(start, min(start + batch, size)), None, start)
