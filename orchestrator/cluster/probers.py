"""Measuring processes, seen from the driver: the place of a gang, filled with fresh processes as often as asked."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.cluster.prober import Prober, ProberSettings
from orchestrator.errors import GangError

PLACE_TIMEOUT_S = 120.0


class ProberDied(GangError):
    """A measuring process ended by itself; `rank` is its own, `no_memory` says whether Ray ended it for that."""

    def __init__(self, rank: int, reason: str, *, no_memory: bool) -> None:
        super().__init__(f"the measuring process of rank {rank} died: {reason}")
        self.rank, self.no_memory = rank, no_memory


class Room:
    """Resources for the workers of one gang, held while this context lasts.

    Args:
        workers: how many.
        per_worker: what each reserves, as Ray names it.
        settings: what each process is told.
        timeout_s: after which a call that has not come back counts as hung.
    """

    def __init__(
        self, workers: int, per_worker: Mapping[str, float], settings: ProberSettings, *, timeout_s: float | None
    ) -> None:
        self.workers = workers
        self._per_worker, self._settings, self._timeout_s = dict(per_worker), settings, timeout_s
        self._placement: Any = None

    def __enter__(self) -> Room:
        self._placement = placement_group([self._per_worker] * self.workers, strategy="PACK")
        if not self._placement.wait(PLACE_TIMEOUT_S):
            remove_placement_group(self._placement)
            raise GangError(f"no room for {self.workers} measuring processes within {PLACE_TIMEOUT_S:.0f} s")
        return self

    def __exit__(self, *error: object) -> None:
        remove_placement_group(self._placement)

    @contextmanager
    def fresh(self) -> Iterator[Probers]:
        """New processes for the workers, ended with the context."""
        actor: Any = ray.remote(max_restarts=0)(Prober)
        handles = [
            actor.options(
                num_cpus=self._per_worker.get("CPU", 0.0),
                num_gpus=self._per_worker.get("GPU", 0.0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._placement, placement_group_bundle_index=at),
            ).remote(dataclasses.asdict(self._settings))
            for at in range(self.workers)
        ]
        try:
            yield Probers(handles, self._timeout_s)
        finally:
            for handle in handles:
                with contextlib.suppress(RayError):
                    ray.kill(handle)


class Probers:
    """Fresh processes, by rank."""

    def __init__(self, handles: Sequence[Any], timeout_s: float | None) -> None:
        self._handles, self._timeout_s = list(handles), timeout_s
        self.world_size = 0  # of the group that was joined last

    def about(self) -> list[dict[str, Any]]:
        """What each says of itself."""
        return self._all(self._handles, "about")

    def join(self, world_size: int) -> None:
        """Make the first `world_size` of them a group; the others idle.

        Raises:
            ProberDied, GangError: one died, or they did not find each other.
        """
        first = self._handles[:world_size]
        address = self._get([first[0].open_store.remote(world_size)])[0] if world_size > 1 else None
        self._get([handle.join.remote(rank, world_size, address) for rank, handle in enumerate(first)])
        self.world_size = world_size

    def time(self, spec: Mapping[str, Any], *, updates: int, warmup: int) -> list[dict[str, Any]]:
        """`Prober.time` on the group, by rank."""
        return self._all(self._handles[: self.world_size], "time", dict(spec), updates, warmup)

    def try_batch(
        self, spec: Mapping[str, Any], order: Mapping[str, Any], rooms: Sequence[float]
    ) -> list[dict[str, Any]]:
        """`Prober.try_batch` on the group, by rank, each with a room of its own."""
        handles = self._handles[: self.world_size]
        asked = zip(handles, rooms, strict=True)
        return self._get([handle.try_batch.remote(dict(spec), dict(order), room) for handle, room in asked])

    def roofline(self, precision: str) -> dict[str, float]:
        """`Prober.roofline` of rank 0."""
        return dict(self._all(self._handles[:1], "roofline", precision)[0])

    def _all(self, handles: Sequence[Any], method: str, *args: Any) -> list[Any]:
        return self._get([getattr(handle, method).remote(*args) for handle in handles])

    def _get(self, references: Sequence[Any]) -> list[Any]:
        """All answers, or the first death: the others may then wait for the dead one for ever."""
        waiting = list(references)
        while waiting:
            ready, waiting = ray.wait(waiting, timeout=self._timeout_s)
            if not ready:
                raise GangError(f"measuring processes made no progress for {self._timeout_s:.0f} s")
            for reference in ready:
                try:
                    ray.get(reference)
                except (ActorDiedError, OutOfMemoryError) as error:
                    rank, text = list(references).index(reference), str(error).strip().splitlines()[-1]
                    raise ProberDied(rank, text, no_memory=isinstance(error, OutOfMemoryError)) from error
                except RayError as error:
                    raise GangError(f"a measurement failed: {str(error).strip().splitlines()[-1]}") from error
        return [ray.get(reference) for reference in references]
