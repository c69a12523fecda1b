"""What one update is made of, over ranks and micro batches: weights, zero weights, clipping, stops, targets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import toys
from broken import Silent
from torch import nn

from orchestrator.config.trial import OptimizerRef, Target
from orchestrator.tasks.arrays import TensorRows
from orchestrator.training.loop import run_trial
from orchestrator.training.task import Task

PLAIN = OptimizerRef(name="SGD")


class Given(Task):
    """A sample is (gradient, tokens): its loss is tokens * gradient . theta, from theta = 1."""

    def __init__(self, gradients: list[list[float]], tokens: list[float]) -> None:
        super().__init__()
        self.rows = TensorRows(torch.tensor(gradients), torch.tensor(tokens))
        self.built: list[nn.Module] = []

    def model(self) -> nn.Module:
        model = nn.Module()
        model.theta = nn.Parameter(torch.ones(self.rows.tensors[0].shape[1]))
        self.built.append(model)
        return model

    def train_data(self) -> TensorRows:
        return self.rows

    def val_data(self) -> TensorRows:
        return TensorRows(torch.ones_like(self.rows.tensors[0]), torch.ones(len(self.rows)))

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        gradient, tokens = batch
        return (tokens * (gradient * model.theta).sum(1)).sum(), tokens.sum()


def _given(group, gradients, tokens, trial):
    task = Given(gradients, tokens)
    outcome, seen = toys.train(group, task, trial)
    return outcome, seen, task.built[0].theta.tolist()


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
def test_a_loss_is_a_mean_over_all_tokens(reducer, two):
    # Valid tokens and mean losses of huggingface/transformers#34242: a mean of means would be 3.75.
    trial = toys.spec((1, 2, 2), updates=1, lr=0.1, reducer=reducer, optimizer=PLAIN)
    for outcome, seen, theta in two.run(_given, [[8.0], [2.0], [4.0], [1.0]], [1.0, 3.0, 2.0, 6.0], trial):
        assert outcome.first_grad_norms == pytest.approx([28 / 12])
        assert theta == pytest.approx([1 - 0.1 * 28 / 12])
        assert not seen or seen[0].metrics["train/loss"] == pytest.approx(28 / 12)


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
def test_a_rank_without_tokens_adds_nothing(reducer, two):
    trial = toys.spec((1, 1, 2), updates=1, reducer=reducer, optimizer=PLAIN)
    outcome, seen, _ = two.run(_given, [[7.0], [2.0]], [0.0, 5.0], trial)[0]
    assert (seen[0].metrics["train/loss"], outcome.first_grad_norms) == (2.0, (2.0,))


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
def test_an_update_without_tokens_is_skipped_and_counted(reducer, two):
    trial = toys.spec((1, 1, 2), updates=3, reducer=reducer, optimizer=PLAIN)
    for outcome, seen, theta in two.run(_given, [[7.0], [2.0]], [0.0, 0.0], trial):
        assert (outcome.status, outcome.updates, outcome.skipped_updates) == ("completed", 0, 3)
        assert (outcome.samples_seen, outcome.first_update_at, theta) == (6, None, [1.0])
        assert all("train/loss" not in evaluation.metrics for evaluation in seen)


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
@pytest.mark.parametrize("micro", [0, 1])
def test_a_silent_micro_batch_keeps_what_the_others_gave(micro, reducer, two):
    # Rank 1 is silent in its last micro batch (0) or in its first (1), where its loss is 0/0.
    trial = toys.spec((8, 2, 2), updates=3, reducer=reducer, noise_probe=True)
    outcomes = [o for o, _ in two.run(toys.train, Silent(1, micro=micro), trial)]
    assert [o.status for o in outcomes] == ["completed"] * 2, outcomes[0].reason
    assert outcomes[0].updates == 3
    assert outcomes[0].first_grad_norms == outcomes[1].first_grad_norms
    quiet = two.run(toys.train, Silent(1), trial)[0][0]
    assert outcomes[0].first_grad_norms[0] != quiet.first_grad_norms[0], "its other micro batch counts"


def test_reducers_agree_on_silent_micro_batches(two):
    norms = []
    for reducer in ("flat", "ddp"):
        trial = toys.spec((8, 2, 2), updates=5, reducer=reducer)
        norms.append(two.run(toys.train, Silent(1, micro=0), trial)[0][0].first_grad_norms)
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_clipping_sees_the_unscaled_mean(precision, reducer, two):
    # As in microsoft/Swin-Transformer#311: clipping each gives (0, 0.8), clipping while scaled by 65536 (0, 1.5e-5).
    trial = toys.spec(
        (1, 1, 2), updates=1, lr=1.0, reducer=reducer, precision=precision, grad_clip=1.0, optimizer=PLAIN
    )
    for outcome, _, theta in two.run(_given, [[3.0, 4.0], [-3.0, 4.0]], [1.0, 1.0], trial):
        assert theta == pytest.approx([1.0, 0.0], abs=1e-6)
        assert outcome.first_grad_norms == pytest.approx([4.0])


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
def test_a_stop_ends_the_trial_before_the_next_update(reducer, two):
    for outcome in two.run(_stopping, toys.spec(eval_every_samples=128, reducer=reducer), 2):
        assert (outcome.status, outcome.samples_seen, outcome.updates) == ("stopped", 256, 4)


def test_a_stop_at_the_last_evaluation_comes_too_late(two):
    for outcome in two.run(_stopping, toys.spec(updates=2), 1):
        assert (outcome.status, outcome.updates) == ("completed", 2)


def test_a_stop_may_be_asked_for_between_evaluations(two):
    # Asked before the sixth update, which is made: its gradients are there by the time that all ranks know.
    for outcome in two.run(_stop_requested, toys.spec()):
        assert (outcome.status, outcome.updates) == ("stopped", 6)


def test_the_target_ends_the_trial_on_all_ranks(two):
    target = Target(metric="val/loss", value=1.3, mode="min")
    trial = toys.spec(updates=200, eval_every_samples=640, target=target, stop_at_target=True)
    (outcome, seen), (other, _) = two.run(toys.train, toys.Tokens(), trial)
    assert outcome.status == other.status == "target_reached"
    assert outcome.samples_seen == other.samples_seen == seen[-1].samples_seen < 200 * 64
    assert [e.metrics["val/loss"] <= 1.3 for e in seen] == [False] * (len(seen) - 1) + [True]


@pytest.mark.parametrize("split", [(64, 1, 1), (16, 2, 2), (32, 1, 2)])
def test_evaluation_points_do_not_depend_on_the_split(split, two):
    from orchestrator.training.group import Solo

    trial = toys.spec(split, updates=63, eval_every_samples=1000)
    if split[2] == 1:
        seen = toys.train(Solo(), toys.Tokens(), trial)[1]
    else:
        seen = two.run(toys.train, toys.Tokens(), trial)[0][1]
    assert [e.samples_seen for e in seen] == [1024, 2048, 3008, 4032]
    assert [e.metrics["updates"] for e in seen] == [16, 32, 47, 63]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("reducer", ["flat", "ddp"])
def test_low_precision_learns(precision, reducer, two):
    trial = toys.spec(updates=100, eval_every_samples=640, precision=precision, reducer=reducer)
    outcome, seen = two.run(toys.train, toys.Tokens(), trial)[0]
    assert outcome.status == "completed", outcome.reason
    assert seen[-1].metrics["val/loss"] < 0.6 * seen[0].metrics["val/loss"]
    assert ("loss_scale" in seen[-1].metrics) == (precision == "fp16")


def _stopping(group, trial, after):
    told = []
    return run_trial(trial, toys.Tokens(), group, lambda e: told.append(e) or len(told) == after)


def _stop_requested(group, trial):
    asked = []

    def request() -> bool:
        asked.append(1)
        return group.rank == 1 and len(asked) == 6

    return run_trial(trial, toys.Tokens(), group, lambda e: False, stop_requested=request)


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
def test_one_reduction_an_update(reducer, two):
    """Of tensors, with every rank's loss, weight, norms and codes in it; evaluations take one each."""
    trial = toys.spec((8, 2, 2), updates=12, eval_every_samples=128, reducer=reducer, noise_probe=True)
    warm_up = 2 if reducer == "ddp" else 0
    assert two.run(_reductions, trial) == [12 + 3 + warm_up] * 2


def _reductions(group, trial):
    import torch.distributed as dist

    right, counted = dist.all_reduce, []

    def all_reduce(*args, **options):
        counted.append(1)
        return right(*args, **options)

    dist.all_reduce = all_reduce
    try:
        toys.train(group, toys.Tokens(), trial)
    finally:
        dist.all_reduce = right
    return len(counted)
