"""Law 8: a trial that was stopped or broken goes on at the exact next sample, to the bit on the same geometry."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toys
from harness import Gang
from legs import KINDS, Noted, Restless, dealt, end_of, eventful, leg

from orchestrator.training.checkpoint import Checkpoints, latest
from orchestrator.training.group import Solo
from orchestrator.training.stream import ids

REDUCERS = pytest.mark.parametrize("reducer", ["flat", "ddp"])
NEVER_S = 1e9  # between evaluations; a stop makes its checkpoint all the same


def _leg(group: Any, task: type, *args: Any) -> dict[str, Any]:
    return leg(group, task(), *args)


@REDUCERS
@KINDS
def test_the_same_geometry_gives_the_same_bits(optimizer, precision, lr, reducer, two, tmp_path):
    trial = eventful(reducer, updates=26, lr=lr, optimizer=optimizer, precision=precision)
    whole = two.run(_leg, Restless, trial, None)
    policy = Checkpoints(folder=str(tmp_path), every_s=NEVER_S)
    # Between two evaluations, then at one, then in the first update after the resume.
    legs = [two.run(_leg, Restless, trial, policy, stop) for stop in (7, 8, 1, None)]
    for rank in (0, 1):
        parts = [one[rank] for one in legs]
        assert [part["outcome"].status for part in parts] == ["stopped"] * 3 + ["completed"]
        assert [part["outcome"].resumed_from for part in parts] == [None, 224, 480, 512]
        assert list(itertools.chain(*(part["told"] for part in parts))) == whole[rank]["told"]
        assert list(itertools.chain(*(part["ids"] for part in parts))) == whole[rank]["ids"]
        assert end_of(parts[-1]["outcome"]) == end_of(whole[rank]["outcome"])
        assert {key for key, _ in parts[0]["told"]} == ({160} if rank == 0 else set())
    metrics = whole[0]["told"][-1][1]
    wanted = {"val/loss", "train/loss", "lr", "grad_norm", "updates"} | (
        {"loss_scale"} if precision == "fp16" else set()
    )
    assert wanted <= set(metrics)
    assert whole[0]["outcome"].noise["windows"] == whole[0]["outcome"].updates > 20


@REDUCERS
def test_a_trial_that_breaks_goes_on_from_its_last_evaluation_to_the_same_bits(reducer, two, tmp_path):
    trial = toys.spec((8, 2, 2), updates=20, reducer=reducer, eval_every_samples=128, noise_probe=True)
    whole = two.run(_leg, Restless, trial, None)
    policy = Checkpoints(folder=str(tmp_path), every_s=0.0)
    broken = two.run(_leg, Restless, trial, policy, None, 384)
    assert broken[0]["outcome"].status == "failed"
    assert latest(policy.folder).samples_seen == 256, "none is made where the evaluation was not taken"
    rest = two.run(_leg, Restless, trial, policy)
    assert rest[0]["outcome"].resumed_from == 256
    assert broken[0]["told"] + rest[0]["told"] == whole[0]["told"]
    assert end_of(rest[0]["outcome"]) == end_of(whole[0]["outcome"])
    # At the end there is nothing left to train, and the same is told of it.
    again = two.run(_leg, Restless, trial, policy)
    assert (again[0]["told"], again[0]["ids"], again[0]["outcome"].resumed_from) == ([], [], 640)
    assert end_of(again[0]["outcome"]) == end_of(whole[0]["outcome"])


@REDUCERS
@pytest.mark.parametrize("worlds", [(2, 1, 2), (1, 2, 1), (2, 4, 1)], ids=str)
@pytest.mark.parametrize("stops", [(7, 9), (5, 5)], ids=["middle of an epoch", "its exact end"])
def test_another_number_of_workers_trains_on_the_same_samples(stops, worlds, reducer, two, four, tmp_path):
    # 320 samples are 5 updates of 64.
    size = 320
    trial = toys.spec((64, 1, 1), updates=25, reducer=reducer, eval_every_samples=64 * 3, noise_probe=True)
    whole = leg(Solo(), Noted(size), trial, None)
    policy, seen, told = Checkpoints(folder=str(tmp_path), every_s=NEVER_S), [], []
    for world, stop in zip(worlds, (*stops, None), strict=True):
        plan = {1: (16, 4, 1), 2: (16, 2, 2), 4: (16, 1, 4)}[world]
        split = replace(trial, plan=toys.spec(plan).plan)
        gang = {1: None, 2: two, 4: four}[world]
        parts = gang.run(_sized, size, split, policy, stop) if gang else [_sized(Solo(), size, split, policy, stop)]
        assert parts[0]["outcome"].plan == {"micro_batch": 16, "accumulation": plan[1], "world_size": world}
        seen += dealt([part["ids"] for part in parts], 64 // world)
        told += parts[0]["told"]
    assert parts[0]["outcome"].status == "completed"
    assert seen == whole["ids"] == ids(trial.seed, 0, 25 * 64, size).tolist()
    assert [samples for samples, _ in told] == [samples for samples, _ in whole["told"]]
    for (_, found), (_, right) in zip(told, whole["told"], strict=True):
        for name in ("train/loss", "val/loss", "grad_norm", "lr", "updates"):
            assert found[name] == pytest.approx(right[name], rel=1e-10), name
    assert parts[0]["outcome"].first_grad_norms == pytest.approx(whole["outcome"].first_grad_norms, rel=1e-10)


def _sized(group: Any, size: int, *args: Any) -> dict[str, Any]:
    return leg(group, Noted(size), *args)


def test_more_workers_than_were_saved_take_their_states_in_turn(two, four, tmp_path):
    trial = toys.spec((16, 2, 2), updates=8)
    policy = Checkpoints(folder=str(tmp_path), every_s=NEVER_S)
    two.run(_leg, Restless, trial, policy, 3)
    wider = replace(trial, plan=toys.spec((16, 1, 4)).plan)
    outcomes = [part["outcome"] for part in four.run(_leg, Restless, wider, policy)]
    assert {(o.status, o.samples_seen, o.updates) for o in outcomes} == {("completed", 512, 8)}


def test_no_evaluation_no_collective(two, tmp_path):
    """The ranks agree on a checkpoint inside the evaluation's own reduction."""
    trial = toys.spec((8, 2, 2), updates=12, eval_every_samples=128)
    for policy in (None, Checkpoints(folder=str(tmp_path), every_s=NEVER_S)):
        assert two.run(_reductions, trial, policy) == [12 + 3] * 2


def _reductions(group: Any, trial: Any, policy: Any) -> int:
    import torch.distributed as dist

    right, counted = dist.all_reduce, []
    dist.all_reduce = lambda *args, **options: counted.append(1) or right(*args, **options)
    try:
        leg(group, Noted(), trial, policy)
    finally:
        dist.all_reduce = right
    return len(counted)


@REDUCERS
def test_another_trial_is_refused_on_every_rank(reducer, two, tmp_path):
    trial = toys.spec((8, 2, 2), updates=8, reducer=reducer)
    policy = Checkpoints(folder=str(tmp_path), every_s=NEVER_S)
    two.run(_leg, Noted, trial, policy, 3)
    for other in (replace(trial, seed=4), replace(trial, lr=replace(trial.lr, peak=0.1))):
        outcomes = [part["outcome"] for part in two.run(_leg, Noted, other, policy)]
        assert outcomes[0].failure == outcomes[1].failure
        assert (outcomes[0].failure.phase, outcomes[0].failure.kind) == ("setup", "OtherTrial")
        assert "a folder of its own" in outcomes[0].reason
    assert latest(policy.folder).samples_seen == 96, "nothing was written over it"
    changed = replace(trial, reducer="ddp" if reducer == "flat" else "flat", plan=toys.spec((4, 4, 2)).plan)
    assert two.run(_leg, Noted, changed, policy)[0]["outcome"].status == "completed"


def test_a_rank_that_cannot_read_its_file_ends_the_trial_on_all(two, tmp_path):
    trial = toys.spec((8, 2, 2), updates=8)
    policy = Checkpoints(folder=str(tmp_path), every_s=NEVER_S)
    two.run(_leg, Noted, trial, policy, 3)
    outcomes = two.run(_blind, trial, policy)
    assert {(o.status, o.failure.rank, o.failure.kind) for o in outcomes} == {("failed", 1, "DamagedCheckpoint")}
    assert two.run(_leg, Noted, trial, policy)[0]["outcome"].resumed_from == 96


def _blind(group: Any, trial: Any, policy: Any) -> Any:
    if group.rank == 1:
        from orchestrator import storage

        right = storage.read
        storage.read = lambda uri: b"" if str(uri).endswith(".pt") else right(uri)
    try:
        return leg(group, Noted(), trial, policy)["outcome"]
    finally:
        if group.rank == 1:
            storage.read = right


def test_every_batch_is_a_sign_of_life_on_every_rank(two):
    trial = toys.spec((8, 2, 2), updates=6, eval_every_samples=64)
    # 101 validation samples in batches of 16 are 7, dealt in turn: 4 and 3, at three evaluations.
    assert [part["beats"] for part in two.run(_leg, Noted, trial, None)] == [6 * 2 + 3 * 4, 6 * 2 + 3 * 3]


@pytest.mark.skipif(sys.platform != "linux", reason="signals")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_between_the_two_writes_of_a_checkpoint(victim, two, tmp_path):
    # ray-project/ray#41700: what a dead worker has half written must not mix with the retry
    trial = toys.spec((8, 2, 2), updates=20, eval_every_samples=128)
    whole = two.run(_leg, Noted, trial, None)
    policy = Checkpoints(folder=str(tmp_path), every_s=0.0)
    gang = Gang(2)
    try:
        for pipe in gang._pipes:
            pipe.send((_kill_in_second_checkpoint, (victim, trial, policy, str(tmp_path / "index.json"))))
        gang._processes[victim].join(60)
        assert gang._processes[victim].exitcode == -signal.SIGKILL
    finally:
        for process in gang._processes:
            process.kill()
            process.join()
    assert latest(policy.folder).samples_seen == 128
    assert {path.name for path in tmp_path.iterdir()} >= {"index.json", "128.pt", "256.pt"}
    rest = two.run(_leg, Noted, trial, policy)
    assert rest[0]["outcome"].resumed_from == 128
    assert rest[0]["told"] == whole[0]["told"][1:]
    for rank in (0, 1):
        assert rest[rank]["ids"] == whole[rank]["ids"][4 * 16 :]
    assert end_of(rest[0]["outcome"]) == end_of(whole[0]["outcome"])


def _kill_in_second_checkpoint(group: Any, victim: int, trial: Any, policy: Any, index: str) -> None:
    """The index's second write waits for ever; `victim` is killed once the data before it is there."""
    import threading
    import time

    from orchestrator import storage

    right, data = storage.write_atomically, Path(index).with_name("256.pt")

    def write(uri: Any, content: Any) -> None:
        if str(uri) == index and data.exists():
            if victim == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()
        right(uri, content)

    def watch() -> None:
        while not data.exists():
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)

    storage.write_atomically = write
    if group.rank == 1 and victim == 1:
        threading.Thread(target=watch, daemon=True).start()
    leg(group, Noted(), trial, policy)
    threading.Event().wait()
