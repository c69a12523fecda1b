"""What one measuring process does: it joins a group of its like, times updates and tries micro batches."""

from __future__ import annotations

import dataclasses
import datetime
import os
import sys
from dataclasses import dataclass
from typing import Any

import psutil
import ray
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore  # torch.distributed does not export it to type checkers

from orchestrator.config.trial import TrialSpec
from orchestrator.theory.batch_finder import Order
from orchestrator.training.batch_try import try_batch
from orchestrator.training.group import Group, ProcessGroup, Solo
from orchestrator.training.records import Failure
from orchestrator.training.registry import load_task
from orchestrator.training.roofline import measure_roofline
from orchestrator.training.task import Task
from orchestrator.training.update_timing import ELSEWHERE, time_updates
from orchestrator.training.utilisation import Utilisation


@dataclass(frozen=True, kw_only=True)
class ProberSettings:
    """What a measuring process shares with a gang's workers; see `cluster.worker.WorkerSettings`."""

    threads: int
    deterministic: bool
    import_paths: tuple[str, ...]
    collective_timeout_s: float = 600.0


class Prober:
    """One process, as an actor. What goes wrong in the user's code comes back as a value, on every rank."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = ProberSettings(**settings)
        sys.path.extend(path for path in self._settings.import_paths if path not in sys.path)
        torch.set_num_threads(self._settings.threads)
        torch.use_deterministic_algorithms(self._settings.deterministic, warn_only=True)
        self._device = torch.device("cuda:0" if ray.get_gpu_ids() else "cpu")
        self._group: Group = Solo(self._device)
        self._store: Any = None
        self._task: tuple[str, Task] | None = None

    def about(self) -> dict[str, Any]:
        """Who it is, and how much memory its device has, and has free; of a CPU, the machine it stands on."""
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            name = torch.cuda.get_device_name(self._device)
        else:
            memory, name = psutil.virtual_memory(), "cpu"
            free, total = memory.available, memory.total
        node = ray.util.get_node_ip_address()
        return {"pid": os.getpid(), "node": node, "device": name, "free_bytes": free, "total_bytes": total}

    def open_store(self, world_size: int) -> tuple[str, int]:
        """Rank 0's part of finding each other: address and port, which nobody else can have taken."""
        address, wait = ray.util.get_node_ip_address(), self._wait
        self._store = TCPStore(address, 0, world_size, is_master=True, wait_for_workers=False, timeout=wait)
        return address, int(self._store.port)

    def join(self, rank: int, world_size: int, address: tuple[str, int] | None) -> None:
        """Become one of a group; collective. Alone, there is nobody to find."""
        if dist.is_initialized():
            dist.destroy_process_group()
        if address is None:
            self._group = Solo(self._device)
            return
        store = self._store
        if rank:
            store = TCPStore(*address, world_size, is_master=False, timeout=self._wait)
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=self._wait)
        self._group = ProcessGroup(self._device)

    def time(self, spec: dict[str, Any], updates: int, warmup: int) -> dict[str, Any]:
        """`time_updates` on all ranks of the group together: ``step_s``, ``shares``, ``utilisation``; or ``error``."""
        trial = TrialSpec.from_dict(spec)
        task = self._agreed_task(trial)
        if isinstance(task, str):
            return {"error": task}
        used = Utilisation(self._device)
        found = time_updates(trial, task, self._group, updates=updates, warmup=warmup, watch=used)
        if isinstance(found, Failure):
            kind = "out of memory" if found.out_of_memory else found.kind
            told = f"{found.phase}: {kind}: {found.message}"
            return {"error": told, "out_of_memory": found.out_of_memory, "elsewhere": found is ELSEWHERE}
        return {"step_s": list(found.step_s), "shares": found.shares, "utilisation": used.mean}

    def try_batch(self, spec: dict[str, Any], order: dict[str, Any], room_bytes: float) -> dict[str, Any]:
        """`batch_try.try_batch` on every rank of the group together: a `Sight` as a dict."""
        trial = TrialSpec.from_dict(spec)
        task = self._agreed_task(trial)
        if isinstance(task, str):
            return {"fits": False, "message": task}
        return dataclasses.asdict(try_batch(trial, task, self._group, Order(**order), room_bytes=room_bytes))

    def roofline(self, precision: str) -> dict[str, float]:
        """What the device reaches: ``flops_per_s`` and ``bytes_per_s``."""
        return dataclasses.asdict(measure_roofline(self._device, precision))

    @property
    def _wait(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self._settings.collective_timeout_s)

    def _agreed_task(self, trial: TrialSpec) -> Task | str:
        """The trial's task, kept for the next call; the error of whichever rank could not build it."""
        key, error = repr((trial.task.name, sorted(trial.task.options.items()))), ""
        if self._task is None or self._task[0] != key:
            try:
                self._task = key, load_task(trial.task.name, trial.task.options)
            except Exception as raised:  # noqa: BLE001  a task is user code
                error = f"{type(raised).__name__}: {raised}"
        answers = self._group.gather_objects(error)
        found = next((f"rank {rank}: {text}" for rank, text in enumerate(answers) if text), "")
        return found or self._task[1]  # type: ignore[index]  # without an error there is one
