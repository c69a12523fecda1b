"""One worker's trials, stopped and gone on with; what goes wrong with a checkpoint costs no trial."""

from __future__ import annotations

import collections
import itertools
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from orchestrator import storage
from orchestrator.config.trial import LoaderSpec, LrPlan, OptimizerRef, TaskRef, TrialSpec
from orchestrator.tasks.arrays import TensorRows
from orchestrator.theory.batch_plan import BatchPlan, InfeasiblePlan, replan
from orchestrator.training.checkpoint import Checkpoints, _entries, latest, read
from orchestrator.training.group import Solo
from orchestrator.training.loop import run_trial
from orchestrator.training.state import OtherTrial, pack, unpack
from orchestrator.training.stream import Stream, windows
from orchestrator.training.task import Task
from orchestrator.training.workers import close_pools

NEVER_S = 1e9
TIMES = {"samples_per_second", "step_ms", "data_wait_fraction", "peak_memory_bytes"}


class Rows(TensorRows):
    """Rows that note which were trained on."""

    def __init__(self, noted: list[int], *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.noted = noted

    def fetch(self, indices: Any, draws: Any) -> Any:
        if draws is not None:
            self.noted.extend(indices.tolist())
        return super().fetch(indices, draws)


class Small(Task):
    """A small regression of `size` samples."""

    def __init__(self, size: int = 100) -> None:
        super().__init__()
        self.size, self.noted = size, []

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))

    def train_data(self) -> Rows:
        x = torch.randn(self.size, 6, generator=torch.Generator().manual_seed(1))
        return Rows(self.noted, x, x.sum(1, keepdim=True))

    val_data = train_data

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return F.mse_loss(model(x), y, reduction="sum"), len(x)


def spec(micro: int = 8, accumulation: int = 1, *, updates: int = 20, **changes: Any) -> TrialSpec:
    total = micro * accumulation
    fields: dict[str, Any] = {
        "task": TaskRef(name="tests:Small"),
        "seed": 5,
        "plan": BatchPlan(global_batch=total, micro_batch=micro, accumulation=accumulation, world_size=1),
        "lr": LrPlan(base=0.01, rule="none", peak=0.01, reference_batch=total, decay="linear", final=0.1),
        "optimizer": OptimizerRef(name="SGD"),
        "budget_samples": updates * total,
        "eval_every_samples": 5 * total,
    }
    return TrialSpec(**(fields | changes))


def train(trial: TrialSpec, policy: Checkpoints | None = None, *, task: Any = None, stop: int | None = None) -> Any:
    """The outcome, what was told, and the ids trained on; asks for a stop at update number `stop`."""
    told: list[Any] = []
    asked: list[int] = []
    task = task or Small()

    def listen(evaluation: Any) -> bool:
        metrics = {name: value for name, value in evaluation.metrics.items() if name not in TIMES}
        return bool(told.append((evaluation.samples_seen, metrics)))

    def request() -> bool:
        asked.append(1)
        return len(asked) == stop

    outcome = run_trial(trial, task, Solo(), listen, stop_requested=request, checkpoints=policy)
    return outcome, told, task.noted


def test_a_run_stopped_inside_an_epoch_goes_on_in_that_epoch(tmp_path):
    # huggingface/accelerate#2016, #4071, #4233: 125 updates an epoch, stopped 75 into the second
    trial = spec(8, updates=500, eval_every_samples=4000)
    policy = Checkpoints(folder=str(tmp_path), every_s=NEVER_S)
    whole = train(trial, task=Small(1000))
    first, rest = (train(trial, policy, task=Small(1000), stop=stop) for stop in (200, None))
    assert (first[0].samples_seen, rest[0].resumed_from, rest[0].samples_seen) == (1600, 1600, 4000)
    assert rest[2] == whole[2][1600:]
    for epoch in range(4):
        ids = (first[2] + rest[2])[1000 * epoch : 1000 * (epoch + 1)]
        assert collections.Counter(ids) == collections.Counter(range(1000)), "each id exactly once an epoch"
    assert first[1] + rest[1] == whole[1]


@given(
    size=st.integers(1, 40),
    split=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4)),
    legs=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=5),
)
def test_positions_go_on_whatever_the_number_of_workers(size, split, legs):
    micro, accumulation, world = split
    total = micro * accumulation * world
    plan = BatchPlan(global_batch=total, micro_batch=micro, accumulation=accumulation, world_size=world)
    stream, seen, ids = Stream(7, size), 0, []
    for workers, updates in legs:
        try:
            plan = replan(plan, workers)
        except InfeasiblePlan:
            continue  # nothing is trained on a split that would round
        stop = seen + updates * total
        ranks = [list(windows(plan, rank, seen, stop)) for rank in range(workers)]
        for update in range(updates):
            for own in ranks:
                for window in own[update * plan.accumulation : (update + 1) * plan.accumulation]:
                    ids += stream.ids(*window).tolist()
        seen = stop
    assert ids == Stream(7, size).ids(0, seen).tolist()


OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"amsgrad": True},
    "AdamW": {"betas": [0.8, 0.99]},
    "NAdam": {},
    "RAdam": {},
    "ASGD": {"t0": 4.0},
    "Adagrad": {},
    "Adadelta": {},
    "Adamax": {},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "Rprop": {},
}


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on_to_the_same_bits(name, precision, tmp_path):
    trial = spec(4, 2, optimizer=OptimizerRef(name=name, options=OPTIMIZERS[name]), precision=precision)
    whole = train(trial)
    policy = Checkpoints(folder=str(tmp_path), every_s=NEVER_S)
    legs = [train(trial, policy, stop=stop) for stop in (7, 6, None)]
    assert [leg[0].status for leg in legs] == ["stopped", "stopped", "completed"], legs[0][0].reason
    assert list(itertools.chain(*(leg[1] for leg in legs))) == whole[1]
    assert legs[-1][0].noise == whole[0].noise
    assert legs[-1][0].first_grad_norms == whole[0].first_grad_norms


def test_loader_processes_go_on_at_the_next_sample(tmp_path):
    trial = spec(loader=LoaderSpec(workers=2))
    policy = Checkpoints(folder=str(tmp_path), every_s=NEVER_S)
    whole = train(trial)
    legs = [train(trial, policy, stop=stop) for stop in (7, None)]
    close_pools()
    assert legs[0][1] + legs[1][1] == whole[1] == train(replace(trial, loader=LoaderSpec()))[1]


def test_the_best_and_the_last_are_kept(tmp_path):
    policy = Checkpoints(folder=str(tmp_path), every_s=0.0)
    told = {}

    def wait() -> None:
        # One that comes while another is still being written is left out, and none may be here.
        for thread in threading.enumerate():
            if thread.name == "checkpoint":
                thread.join()

    def listen(evaluation: Any) -> bool:
        told[evaluation.samples_seen] = evaluation.metrics["val/loss"]
        return False

    # At this rate the loss goes up and down.
    trial = spec(lr=LrPlan(base=0.25, rule="none", peak=0.25, reference_batch=8), updates=60)
    assert run_trial(trial, Small(), Solo(), listen, checkpoints=policy, beat=wait).status == "completed"
    best = min(told, key=told.__getitem__)
    assert 40 < best < 480
    assert [(one.samples_seen, one.value) for one in _entries(policy.folder)] == [(best, told[best]), (480, told[480])]


@pytest.mark.parametrize(("every_s", "made"), [(None, 0), (NEVER_S, 0), (0.0, 1)])
def test_none_is_made_before_its_time(every_s, made, tmp_path):
    train(spec(updates=5), Checkpoints(folder=str(tmp_path / "trial"), every_s=every_s))
    assert len(_entries(str(tmp_path / "trial"))) == made


def test_a_stop_without_checkpoints_makes_none(tmp_path):
    outcome, *_ = train(spec(), Checkpoints(folder=str(tmp_path / "trial"), every_s=None), stop=3)
    assert outcome.status == "stopped"
    assert not (tmp_path / "trial").exists()


def test_a_listener_that_stops_the_trial_wants_no_checkpoint(tmp_path):
    policy = Checkpoints(folder=str(tmp_path / "trial"), every_s=0.0)
    outcome = run_trial(spec(), Small(), Solo(), lambda evaluation: True, checkpoints=policy)
    assert (outcome.status, outcome.samples_seen) == ("stopped", 40)
    assert latest(policy.folder) is None


def test_a_write_that_fails_is_noted_and_training_goes_on(tmp_path, monkeypatch, caplog):
    policy = Checkpoints(folder=str(tmp_path), every_s=NEVER_S)
    train(spec(), policy, stop=7)

    def full(uri: Any, data: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "write_atomically", full)
    outcome, *_ = train(spec(), policy, stop=6)
    assert (outcome.status, outcome.samples_seen) == ("stopped", 104)
    (note,) = outcome.notes[1:]
    assert note.startswith("1 checkpoint(s) could not be made; the first after 104 samples: OSError")
    assert "No space left" in caplog.text
    monkeypatch.undo()
    assert latest(policy.folder).samples_seen == 56
    assert train(spec(), policy)[0].resumed_from == 56


class Odd(Small):
    """A module with an extra state that no checkpoint may hold, because reading it would run code."""

    def model(self) -> nn.Module:
        return _OddModule(6, 1)


class _OddModule(nn.Linear):
    def get_extra_state(self) -> Any:
        return Path("anything")


def test_a_state_that_is_not_plain_is_noted_and_training_goes_on(tmp_path):
    outcome, *_ = train(spec(), Checkpoints(folder=str(tmp_path / "trial"), every_s=NEVER_S), task=Odd(), stop=7)
    assert outcome.status == "stopped"
    assert "tensors and plain values only, and this is a PosixPath" in outcome.notes[-1]
    assert latest(str(tmp_path / "trial")) is None


def test_what_a_trial_is_does_not_depend_on_its_split():
    trial = spec(8)
    assert trial.trajectory == spec(4, 2).trajectory == replace(trial, reducer="ddp").trajectory
    assert trial.trajectory == replace(trial, loader=LoaderSpec(workers=3)).trajectory
    assert trial.trajectory == replace(trial, lr=replace(trial.lr, base=9.0, rule="sqrt")).trajectory
    others = [{"seed": 6}, {"budget_samples": 8}, {"precision": "fp64"}, {"eval_every_samples": 8}, {"grad_clip": 1.0}]
    assert len({trial.trajectory, spec(16).trajectory, *(replace(trial, **one).trajectory for one in others)}) == 7


def test_a_state_of_another_format_is_refused():
    data = bytes(pack({"format": 2, "trajectory": spec().trajectory}))
    with pytest.raises(OtherTrial, match="format 2"):
        unpack(data, spec().trajectory)


def test_reading_a_checkpoint_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "run"),)

    with pytest.raises(Exception, match="weights_only"):
        unpack(bytes(pack({"format": Evil()})), spec().trajectory)
    assert not (tmp_path / "run").exists()


def test_a_model_that_has_changed_since_is_refused(tmp_path):
    class Wider(Small):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Dropout(0.1), nn.Linear(9, 1))

    policy = Checkpoints(folder=str(tmp_path), every_s=NEVER_S)
    train(spec(), policy, stop=7)
    outcome, *_ = train(spec(), policy, task=Wider())
    assert (outcome.status, outcome.failure.phase, outcome.failure.kind) == ("failed", "setup", "OtherTrial")
    assert "has the task's code changed?" in outcome.reason


def test_a_file_that_is_not_a_checkpoint_after_all_is_a_failure_of_setup(tmp_path):
    from orchestrator.training.checkpoint import write

    policy = Checkpoints(folder=str(tmp_path))
    write(policy, 56, memoryview(b"no zip file"), None)
    outcome, *_ = train(spec(), policy)
    assert (outcome.status, outcome.failure.phase) == ("failed", "setup")
    assert read(policy.folder, latest(policy.folder)) == b"no zip file"


class Mortal(Small):
    """Its loader processes tell who they are; the system kills one of them after a few updates."""

    def train_data(self) -> Any:
        return WithPid(self.noted, *super().train_data().tensors)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y, pid = batch
        self.noted.append(1)
        if len(self.noted) == 4:
            os.kill(int(pid[0]), signal.SIGKILL)
            while psutil.Process(int(pid[0])).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)
        return super().loss(model, (x, y))

    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        return {"loss": super().loss(model, batch[:2])}

    val_data = train_data


class WithPid(Rows):
    def fetch(self, indices: Any, draws: Any) -> Any:
        return (*super().fetch(indices, draws), torch.full((len(indices),), os.getpid()))


def test_a_loader_process_that_the_system_kills_is_told_by_its_name():
    trial = spec(loader=LoaderSpec(workers=1))
    outcome, *_ = train(trial, task=Mortal())
    assert (outcome.status, outcome.failure.kind, outcome.failure.phase) == ("failed", "LoaderDied", "loader")
    assert "short of memory" in outcome.reason
    # The next trial finds new processes.
    again, *_ = train(replace(trial, budget_samples=16, eval_every_samples=16), task=Mortal())
    close_pools()
    assert again.status == "completed", again.reason
