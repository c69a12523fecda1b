"""A pool of spawned gloo processes that run one function after another: a gang without Ray."""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

TIMEOUT_S = 120


class Gang:
    """`world_size` processes in one gloo group. Functions and arguments must be picklable and importable."""

    def __init__(self, world_size: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = mp.get_context("spawn")
        self._pipes, self._processes = [], []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            store = Path(self._folder.name) / "store"
            process = context.Process(target=_serve, args=(rank, world_size, str(store), theirs))
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        """By rank."""
        return [process.pid for process in self._processes]

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """``function(group, *args)`` on every rank; its results by rank.

        Raises:
            AssertionError: with the ranks' tracebacks if any raised, or did not answer within `TIMEOUT_S`.
        """
        for pipe in self._pipes:
            pipe.send((function, args))
        answers = [pipe.recv() if pipe.poll(TIMEOUT_S) else ("hangs", "") for pipe in self._pipes]
        wrong = [f"rank {rank} {state}: {value}" for rank, (state, value) in enumerate(answers) if state != "done"]
        assert not wrong, "\n".join(wrong)
        return [value for _, value in answers]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()


def _serve(rank: int, world_size: int, store: str, pipe: Any) -> None:
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    from orchestrator.training.group import ProcessGroup
    from orchestrator.training.workers import close_pools

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timedelta(seconds=TIMEOUT_S)
    )
    group = ProcessGroup()
    while (job := pipe.recv()) is not None:
        function, args = job
        try:
            pipe.send(("done", function(group, *args)))
        except Exception:  # noqa: BLE001
            pipe.send(("raised", traceback.format_exc()))
    close_pools()
    # Taking gloo's threads down under load can abort the process, and nothing is left to clean up.
    os._exit(0)
