"""Law 12: what goes wrong on one rank ends the trial on all, with the cause, and the gang lives on."""

from __future__ import annotations

import os

import pytest
import toys
from broken import Broken

PHASES = {
    "setup": ("setup", "FileNotFoundError", "no weights"),
    "loader": ("loader", "OSError", "disk broke"),
    "forward": ("forward", "ValueError", "forward broke"),
    "early": ("backward", "RuntimeError", "backward broke"),
    "late": ("backward", "RuntimeError", "backward broke"),
    "after": ("backward", "RuntimeError", "backward broke"),
    "evaluation": ("evaluation", "ZeroDivisionError", "evaluation broke"),
    "vector": ("forward", "TypeError", "scalar tensor"),
}


@pytest.fixture(scope="module")
def expected(two):
    """What the trial after a failure must give: that of the same gang before any."""
    return {
        reducer: two.run(toys.train, toys.Tokens(), toys.spec((8, 2, 2), reducer=reducer))[0][1][-1].metrics["val/loss"]
        for reducer in ("flat", "ddp")
    }


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
@pytest.mark.parametrize("phase", PHASES)
def test_an_exception_on_rank_1_is_told_on_both_and_the_next_trial_runs(phase, reducer, two, expected):
    pids = two.run(_pid)
    where, kind, message = PHASES[phase]
    outcomes = [o for o, _ in two.run(toys.train, Broken(phase), toys.spec((8, 2, 2), reducer=reducer))]
    assert outcomes[0].failure == outcomes[1].failure
    failure = outcomes[0].failure
    assert (failure.rank, failure.phase, failure.kind) == (1, where, kind)
    assert message in failure.message
    assert phase == "vector" or message in failure.traceback
    assert {o.status for o in outcomes} == {"failed"}
    assert message in outcomes[0].reason

    after = two.run(toys.train, toys.Tokens(), toys.spec((8, 2, 2), reducer=reducer))
    assert after[0][1][-1].metrics["val/loss"] == expected[reducer]
    assert two.run(_pid) == pids == two.pids


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
def test_no_memory_on_one_rank(reducer, two):
    task = Broken("forward", kind="memory", bad_rank=0)
    for outcome, _ in two.run(toys.train, task, toys.spec((8, 2, 2), reducer=reducer)):
        assert (outcome.status, outcome.failure.kind, outcome.failure.rank) == ("failed", "OutOfMemoryError", 0)
        assert outcome.updates == 1, "two micro batches an update, and the third call fails"


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
@pytest.mark.parametrize(("phase", "what"), [("nan", "the training loss"), ("infinite gradient", "the gradient")])
def test_a_number_that_is_not_finite_ends_the_trial_everywhere(phase, what, reducer, two):
    for outcome, seen in two.run(toys.train, Broken(phase), toys.spec((8, 2, 2), reducer=reducer)):
        assert outcome.status == "diverged"
        assert outcome.reason == f"{what} is not finite after 32 samples"
        assert (outcome.samples_seen, outcome.updates, outcome.failure) == (32, 1, None)
        assert seen == []


def test_an_exception_in_the_listener_of_rank_0(two):
    for outcome in two.run(_deaf, toys.spec(eval_every_samples=64)):
        assert (outcome.status, outcome.failure.rank, outcome.failure.phase) == ("failed", 0, "evaluation")
        assert (outcome.failure.message, outcome.samples_seen) == ("not listening", 64)


def test_an_exception_in_the_listener_at_the_end(two):
    for outcome in two.run(_deaf, toys.spec(updates=1)):
        assert (outcome.status, outcome.failure.message) == ("failed", "not listening")


def test_an_optimizer_that_raises_on_one_rank(two):
    for outcome in two.run(_broken_step, toys.spec()):
        assert (outcome.status, outcome.failure.rank, outcome.failure.phase) == ("failed", 1, "update")


def _pid(group):
    return os.getpid()


def _deaf(group, trial):
    from orchestrator.training.loop import run_trial

    def listen(evaluation):
        raise RuntimeError("not listening")

    return run_trial(trial, toys.Tokens(), group, listen)


def _broken_step(group, trial):
    import torch

    def step(self, closure=None):
        raise torch.OutOfMemoryError("no room for momentum")

    right = torch.optim.SGD.step
    if group.rank == 1:
        torch.optim.SGD.step = step
    try:
        return toys.train(group, toys.Tokens(), trial)[0]
    finally:
        torch.optim.SGD.step = right
