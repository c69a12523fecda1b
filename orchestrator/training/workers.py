"""Loader processes that outlive trials: starting them costs seconds, which no trial of a sweep should pay twice.

They are torch's own `DataLoader` workers. What they load next is asked of a sampler whose requests each trial replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from orchestrator.config.trial import LoaderSpec
from orchestrator.training.requests import Request, reader

_DYING_S = 1.0
_KEPT_POOLS = 4  # two tasks, training and validation data each
_pools: dict[tuple[str, LoaderSpec], WorkerPool] = {}


def worker_pool(data: Any, spec: LoaderSpec, key: str) -> WorkerPool:
    """The running pool for (`key`, `spec`), or a new one; the one unused longest ends when there are too many."""
    pool = _pools.pop((key, spec), None) or WorkerPool(data, spec)
    _pools[key, spec] = pool
    while len(_pools) > _KEPT_POOLS:
        _pools.pop(next(iter(_pools))).close()
    return pool


def close_pools() -> None:
    """End every loader process of this process."""
    while _pools:
        _pools.popitem()[1].close()


class LoaderDied(RuntimeError):
    """A loader process ended on its own: killed by the system, for want of memory most often, or by its own code."""


class WorkerPool:
    """Worker processes over one data set, for one trial after another."""

    def __init__(self, data: Any, spec: LoaderSpec) -> None:
        self._data, self._spec = data, spec
        self._loader: DataLoader[Any] | None = None
        self._requests = _Requests()

    def run(self, requests: Iterator[Request]) -> Iterator[Any]:
        """Batches of `requests`, in order. Starts the workers if they do not run; drops what an older run left over.

        An exception of the data in a worker is raised here with the worker's traceback, and the workers live on. When
        a worker dies, `LoaderDied` is raised, its pool is given up, and the next run starts afresh.
        """
        self._requests.source = requests
        if self._loader is not None and not _alive(getattr(self._loader, "_iterator", None)):
            self.close()
        if self._loader is None:
            self._loader = self._start()
        try:
            return self._batches(_watched_here_only(iter(self._loader)))
        except BaseException:
            self.close()
            raise

    @property
    def running(self) -> bool:
        """Whether the workers have been started and not ended."""
        return self._loader is not None

    def close(self) -> None:
        """End the workers."""
        loader, self._loader = self._loader, None
        iterator = getattr(loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()

    def _batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            except BaseException as error:
                if _alive(iterator, patience_s=_DYING_S if isinstance(error, OSError | EOFError) else 0.0):
                    raise
                self.close()
                if not isinstance(error, Exception):
                    raise
                raise LoaderDied(f"{error}. If it was killed, its node may be short of memory") from error
            yield batch

    def _start(self) -> DataLoader[Any]:
        return DataLoader(
            _Answers(self._data),
            batch_sampler=self._requests,
            num_workers=self._spec.workers,
            prefetch_factor=self._spec.prefetch,
            pin_memory=self._spec.pin_memory,
            persistent_workers=True,
            # A forked child of a process with gloo or Ray threads can deadlock.
            multiprocessing_context="spawn",
            collate_fn=_same,
            # Without a generator of its own, the loader would draw from torch's and change the trial's numbers.
            generator=torch.Generator(),
        )


def _alive(iterator: Any, patience_s: float = 0.0) -> bool:
    """Whether all workers live; `patience_s` where one may be dying, for its pipes close before it has ended."""
    if iterator is None:
        return True
    if patience_s:
        ended = wait([worker.sentinel for worker in iterator._workers], patience_s)
        for worker in iterator._workers:
            if worker.sentinel in ended:
                worker.join(patience_s)  # its pipe closes before its last thread has ended, and it counts as alive
    return all(worker.is_alive() for worker in iterator._workers)


def _watched_here_only(iterator: Any) -> Iterator[Any]:
    """Let a dead worker be found where its batch is asked for, and nowhere else.

    torch's signal handler would raise at any line of the main thread, inside a collective for one.
    """
    if iterator._worker_pids_set:
        torch._C._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    found: Iterator[Any] = iterator
    return found


class _Requests(Sampler[Any]):
    """The current trial's requests, in the place of a batch sampler."""

    source: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.source


class _Answers(Dataset[Any]):
    """The data as a `DataLoader` worker sees it: a whole request in, a whole batch out."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __getitems__(self, request: Request) -> Any:
        return reader(self.data)(request)


def _same(batch: Any) -> Any:
    return batch
