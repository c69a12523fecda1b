"""What one worker of a gang does all its life: say hello, warm up, and train one trial after another.

This is the training function of one long Ray Train run. Rank 0 talks to the mailbox; all ranks learn of a trial by a
broadcast, and from then on only through the collectives of training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.train
import torch
from ray.exceptions import ActorDiedError

from orchestrator.cluster.orders import Orders
from orchestrator.cluster.snapshot import imported_first
from orchestrator.cluster.watchdog import Watchdog
from orchestrator.config.trial import Mode, TrialSpec
from orchestrator.storage import join
from orchestrator.theory.batch_plan import replan
from orchestrator.training.brief import Brief
from orchestrator.training.checkpoint import Checkpoints, latest
from orchestrator.training.group import Group, ProcessGroup, Solo
from orchestrator.training.loop import run_trial
from orchestrator.training.records import Evaluation, Failure, Outcome
from orchestrator.training.registry import load_task
from orchestrator.training.task import Task
from orchestrator.training.workers import close_pools

_POLL_S = 20.0  # far below the process group's timeout: the other ranks wait in a broadcast meanwhile


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What every worker of a gang needs to know.

    `import_paths` are the driver's, so that a task is found where the user's command found it; `warm_up` is a trial
    spec to be tried briefly at the start. `checkpoints` is the folder of all trials' checkpoints, None to make none;
    with `keep_best`, the best by `metric` and `mode` stays. After `hang_timeout_s` without progress a worker ends.
    `task_files` are the task's source, by path, where it is not the one that is installed.
    """

    gang: int
    threads: int
    deterministic: bool
    one_trial: bool
    import_paths: tuple[str, ...]
    warm_up: dict[str, Any]
    hang_timeout_s: float | None = None
    checkpoints: str | None = None
    every_s: float = 30.0
    keep_last: int = 1
    keep_best: bool = True
    metric: str = "val/loss"
    mode: Mode = "min"
    task_files: dict[str, str] = field(default_factory=dict)

    def checkpoints_of(self, trial: str, keep_at: tuple[int, ...] = ()) -> Checkpoints | None:
        """Where and how often a trial leaves checkpoints; those at `keep_at` samples stay."""
        if self.checkpoints is None:
            return None
        return Checkpoints(
            folder=join(self.checkpoints, trial),
            every_s=self.every_s,
            keep_last=self.keep_last,
            keep_best=self.keep_best,
            metric=self.metric,
            mode=self.mode,
            keep_at=keep_at,
        )


def gang_main(config: dict[str, Any]) -> None:
    """Train trials until the mailbox says to go home. Runs on every worker of the gang."""
    settings, mailbox = WorkerSettings(**config["settings"]), config["mailbox"]
    sys.path.extend(path for path in settings.import_paths if path not in sys.path)
    torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(settings.deterministic, warn_only=True)
    device = ray.train.torch.get_device()
    world_size = ray.train.get_context().get_world_size()
    group: Group = ProcessGroup(device) if world_size > 1 else Solo(device)
    workers = group.gather_objects(_about(group))
    with imported_first(settings.task_files):
        try:
            _serve(settings, mailbox, group, workers)
        finally:
            close_pools()


def _serve(settings: WorkerSettings, mailbox: Any, group: Group, workers: list[dict[str, Any]]) -> None:
    """Say hello, warm up, and train trial after trial."""
    tasks = _Tasks()
    said = None
    if group.rank == 0:
        with _until_it_is_gone():
            token = ray.get(mailbox.hello.remote(settings.gang, workers))
            said = token, ray.get(mailbox.may_warm_up.remote(settings.gang))
    said = group.broadcast_object(said)
    if said is None:
        return
    token, warm_up = said
    mine = (settings.gang, token)
    watchdog = Watchdog(settings.hang_timeout_s, lambda *found: mailbox.hung.remote(*mine, *found), group)
    if warm_up:
        with watchdog:
            _warm_up(TrialSpec.from_dict(settings.warm_up), tasks, group, watchdog.beat)
    orders = Orders(lambda wait_s: mailbox.order.remote(*mine, wait_s)) if group.rank == 0 else None
    while True:
        job = {"close": True}
        if group.rank == 0:
            with _until_it_is_gone():
                job = ray.get(mailbox.take.remote(settings.gang, token, _POLL_S))
        job = group.broadcast_object(job)
        if job is None:
            continue
        if "close" in job:
            return
        desk = _Desk(settings, mailbox, token, job, group, orders)
        with watchdog:
            outcome = desk.train(tasks, watchdog.beat)
        if group.rank == 0:
            with _until_it_is_gone():
                ray.get(mailbox.finish.remote(settings.gang, token, job["trial"], outcome.to_dict()))
        if settings.one_trial:
            return


def _until_it_is_gone() -> AbstractContextManager[None]:
    """Without a mailbox the sweep is over: workers then go home in order, as an error would have them started again."""
    return contextlib.suppress(ActorDiedError)


class _Desk:
    """One trial as a gang was handed it, with the way back to the mailbox."""

    def __init__(
        self,
        settings: WorkerSettings,
        mailbox: Any,
        token: int,
        job: dict[str, Any],
        group: Group,
        orders: Orders | None,
    ) -> None:
        self._gang, self._mailbox, self._token, self._group, self._orders = settings.gang, mailbox, token, group, orders
        self._trial, self._again = job["trial"], job["again"]
        spec = TrialSpec.from_dict(job["spec"])
        if spec.plan.world_size != group.world_size:  # the cluster has shrunk: more accumulation, the same global batch
            spec = dataclasses.replace(spec, plan=replan(spec.plan, group.world_size))
        self._spec, self._checkpoints = spec, settings.checkpoints_of(self._trial, spec.keep_at)

    def train(self, tasks: _Tasks, beat: Callable[[], None]) -> Outcome:
        """The trial; a task that cannot be built on one rank ends it on all."""
        if self._again and self._group.rank == 0:
            self._say_continued()
        task, failure, rank = tasks.get(self._spec), None, self._group.rank
        if isinstance(task, Exception):
            text = "".join(traceback.format_exception(task))
            failure = Failure(
                rank=rank, phase="setup", kind=type(task).__name__, message=str(task), traceback=text[-4000:]
            )
        first = next((f for f in self._group.gather_objects(failure) if f is not None), None)
        if first is not None or isinstance(task, Exception):
            reason = f"{first.kind}: {first.message}" if first else ""
            return Outcome(status="failed", samples_seen=0, updates=0, train_seconds=0.0, reason=reason, failure=first)
        return run_trial(
            self._spec,
            task,
            self._group,
            self._report,
            stop_requested=self._orders.stop if self._orders else None,
            checkpoints=self._checkpoints,
            beat=beat,
        )

    def _report(self, evaluation: Evaluation) -> bool:
        said = dataclasses.asdict(evaluation)
        return bool(ray.get(self._mailbox.report.remote(self._gang, self._token, self._trial, said)))

    def _say_continued(self) -> None:
        saved = latest(self._checkpoints.folder) if self._checkpoints else None
        plan = dataclasses.asdict(self._spec.plan)
        del plan["global_batch"]
        seen = saved.samples_seen if saved else 0
        ray.get(self._mailbox.continued.remote(self._gang, self._token, self._trial, seen, plan))


def _warm_up(spec: TrialSpec, tasks: _Tasks, group: Group, beat: Callable[[], None]) -> None:
    """Two updates of the sweep's own model: the first trial of a process otherwise pays 1.5 to 2.4 s for first uses.

    Whatever goes wrong here goes wrong again in a real trial, which reports it. If it ends the processes, the next
    ones leave it out.
    """
    two_updates = 2 * spec.plan.global_batch
    lr = dataclasses.replace(spec.lr, warmup_samples=0)
    short = dataclasses.replace(
        spec, budget_samples=two_updates, eval_every_samples=two_updates, eval_growth=0.0, target=None, lr=lr
    )
    task = tasks.get(short)
    brief: Task | Exception
    try:
        brief = task if isinstance(task, Exception) else Brief(task, short.eval_batch * group.world_size)
    except Exception as error:  # noqa: BLE001  a task is user code, and may not have set itself up as `Task` does
        brief = error
    if not any(group.gather_objects(isinstance(brief, Exception))) and not isinstance(brief, Exception):
        run_trial(short, brief, group, lambda evaluation: False, beat=beat)


class _Tasks:
    """The task of the trial at hand. It is kept for the next trial: loading data can cost more than a short trial."""

    def __init__(self) -> None:
        self._key: Any = None
        self._task: Task | Exception | None = None

    def get(self, spec: TrialSpec) -> Task | Exception:
        """The trial's task, or the error of its constructor."""
        key = (spec.task.name, repr(sorted(spec.task.options.items())))
        if key != self._key or self._task is None or isinstance(self._task, Exception):
            self._key = key
            try:
                self._task = load_task(spec.task.name, spec.task.options)
            except Exception as error:  # noqa: BLE001  a task is user code; its error is the trial's outcome
                self._task = error
        return self._task


def _about(group: Group) -> dict[str, Any]:
    name = torch.cuda.get_device_name(group.device) if group.device.type == "cuda" else "cpu"
    placement = ray.util.get_current_placement_group()
    return {
        "rank": group.rank,
        "pid": os.getpid(),
        "node": ray.util.get_node_ip_address(),
        "node_id": ray.get_runtime_context().get_node_id(),
        "placement": placement and placement.id.hex(),
        "device": name,
    }
