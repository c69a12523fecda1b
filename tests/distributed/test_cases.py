"""What people ran into with several workers: a rank that differs from the others must not part from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import toys
from torch import nn
from torch.nn import functional as F

from orchestrator.config.trial import LossScale, OptimizerRef
from orchestrator.tasks.arrays import TensorRows
from orchestrator.training.group import Solo
from orchestrator.training.task import Task

PLAIN = OptimizerRef(name="SGD")
REDUCERS = pytest.mark.parametrize("reducer", ["flat", "ddp"])


class Seen(Task):
    """Keeps the models that it builds, so that a test can look at their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.built: list[nn.Module] = []

    def keep(self, model: nn.Module) -> nn.Module:
        self.built.append(model)
        return model


class Images(Seen):
    """A small convolutional net over weighted 6 x 6 images, with group norm: nothing in it looks across samples."""

    def model(self) -> nn.Module:
        layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten()]
        return self.keep(nn.Sequential(*layers, nn.Linear(16, 3)))

    def train_data(self) -> TensorRows:
        return images(90, 1)

    def val_data(self) -> TensorRows:
        return images(53, 2)

    metric_modes = {"loss": "min", "accuracy": "max"}  # noqa: RUF012

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, label, weight = batch
        return (F.cross_entropy(model(x), label, reduction="none") * weight).sum(), weight.sum()

    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        x, label, _ = batch
        return {"loss": self.loss(model, batch), "accuracy": ((model(x).argmax(1) == label).sum(), len(x))}


def images(n: int, seed: int) -> TensorRows:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 6, 6, generator=generator)
    return TensorRows(x, x[:, 0, 0, :3].argmax(1), torch.randint(0, 4, (n,), generator=generator).float())


class Sparse(toys.Tokens):
    """Three samples of twelve weigh anything, by unequal amounts, so that many a window weighs nothing."""

    def train_data(self) -> TensorRows:
        x, label, _ = toys.rows(12, 1).tensors
        return TensorRows(x, label, torch.tensor([1.0, 5.0, 2.0] + [0.0] * 9))


class Overflowing(Seen):
    """Gradients of rank 1 are ten million times those of rank 0: fp16 holds two such rows up to a scale of 2 only."""

    def model(self) -> nn.Module:
        return self.keep(nn.Linear(4, 1, bias=False))

    def train_data(self) -> TensorRows:
        return TensorRows(torch.ones(8, 4))

    val_data = train_data

    def loss(self, model: nn.Module, batch: Any) -> Any:
        factor = 1e4 if toys.rank() == 1 and torch.is_grad_enabled() else 1e-3
        return (model(batch[0]) * factor).sum(), len(batch[0])


class Tiny(toys.Tokens):
    """Weights so small that fp32 cannot hold their inverse."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss, weight = super().loss(model, batch)
        return loss * 1e-40, weight * 1e-40


class RankDependent(Seen):
    """A model that is built otherwise on every rank, with buffers of several dtypes."""

    def model(self) -> nn.Module:
        torch.manual_seed(toys.rank())
        model = nn.Linear(toys.FEATURES, toys.CLASSES)
        model.register_buffer("mask", torch.tensor([toys.rank() == 0, True]))
        model.register_buffer("frequencies", torch.tensor([1.0 + 1j * toys.rank()]))
        model.register_buffer("scalar", torch.tensor(float(toys.rank())))
        return self.keep(model)

    def train_data(self) -> TensorRows:
        return toys.rows(64, 1)

    val_data = train_data

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return toys.Samples().loss(model, batch)


def _watched(group, task, trial):
    """Outcome, evaluations, and the trained model's state as lists."""
    outcome, seen = toys.train(group, task, trial)
    state = task.built[-1].state_dict() if task.built else {}
    return outcome, seen, {name: tensor.tolist() for name, tensor in state.items()}


def _anywhere(gangs, task, trial):
    world = trial.plan.world_size
    return toys.train(Solo(), task, trial) if world == 1 else gangs[world].run(toys.train, task, trial)[0]


@REDUCERS
@pytest.mark.parametrize("grad_clip", [None, 0.05])
def test_a_convolutional_net_trains_alike_however_its_batch_is_split(grad_clip, reducer, two, four):
    gangs, told = {2: two, 4: four}, []
    for split in [(24, 1, 1), (4, 6, 1), (12, 1, 2), (3, 4, 2), (2, 3, 4)]:
        trial = toys.spec(split, updates=30, eval_every_samples=240, reducer=reducer, grad_clip=grad_clip)
        outcome, seen = _anywhere(gangs, Images(), trial)
        assert (outcome.status, outcome.notes) == ("completed", ()), outcome.reason
        names = ("train/loss", "val/loss", "val/accuracy", "grad_norm")
        told.append([e.metrics[name] for e in seen for name in names] + list(outcome.first_grad_norms))
        assert grad_clip is None or min(outcome.first_grad_norms) > grad_clip, "no update was clipped"
    for other in told[1:]:
        assert other == pytest.approx(told[0], rel=1e-10)


@REDUCERS
def test_windows_and_micro_batches_without_weight_change_nothing_of_the_others(reducer, two):
    # instructlab/training#547, karpathy/nanochat#623: all-masked micro batches
    found = []
    for split in [(4, 1, 1), (1, 4, 1), (2, 1, 2), (1, 2, 2)]:
        trial = toys.spec(split, updates=30, reducer=reducer, noise_probe=True)
        outcome, seen = _anywhere({2: two}, Sparse(), trial)
        assert outcome.status == "completed", outcome.reason
        assert outcome.skipped_updates > 0 < outcome.updates
        assert outcome.skipped_updates + outcome.updates == 30
        found.append((outcome.skipped_updates, [*outcome.first_grad_norms, seen[-1].metrics["val/loss"]]))
    for skipped, numbers in found[1:]:
        assert skipped == found[0][0]
        assert numbers == pytest.approx(found[0][1], rel=1e-10)


@REDUCERS
def test_an_fp16_overflow_on_one_rank_is_skipped_on_all(reducer, two):
    # microsoft/Swin-Transformer#311, huggingface/accelerate#641
    scale = LossScale(initial=64.0)
    trial = toys.spec(
        (2, 2, 2), updates=10, lr=1e-6, optimizer=PLAIN, precision="fp16", loss_scale=scale, reducer=reducer
    )
    (first, seen, weights), (second, _, others) = two.run(_watched, Overflowing(), trial)
    assert (first.status, first.updates, first.skipped_updates) == ("completed", 5, 5)
    assert (second.status, second.updates, second.skipped_updates) == ("completed", 5, 5)
    assert seen[-1].metrics["loss_scale"] == 2.0
    assert first.first_grad_norms == second.first_grad_norms
    # Four elements of (4 * 1e4 + 4 * 1e-3) / 8 each.
    assert first.first_grad_norms[0] == pytest.approx(2 * 5000.0005, rel=1e-3)
    assert weights == others


@REDUCERS
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"warmup_samples": 10**6}, "warmup_samples = 1000000"),
        ({"final": 3.0}, "final = 3.0"),
        ({"decay": "exponential"}, "decay = 'exponential'"),
        ({"peak": float("nan")}, "lr.peak = nan"),
        ({"eval_every_samples": 0}, "eval_every_samples = 0"),
        ({"budget_samples": 0}, "budget_samples = 0"),
        ({"eval_batch": -4}, "eval_batch = -4"),
        ({"grad_clip": -1.0}, "grad_clip = -1.0"),
        ({"precision": "fp8"}, "precision = 'fp8'"),
        ({"loss_scale": LossScale(initial=float("inf"))}, "loss_scale.initial = inf"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_spec_that_cannot_be_followed_is_a_failed_trial_and_the_gang_lives_on(changes, text, reducer, two):
    trial = toys.spec(updates=2, reducer=reducer)
    of_lr = {name: value for name, value in changes.items() if hasattr(trial.lr, name)}
    bad = replace(trial, lr=replace(trial.lr, **of_lr)) if of_lr else replace(trial, **changes)
    for outcome, seen in two.run(toys.train, toys.Tokens(), bad):
        assert (outcome.status, outcome.failure.phase, outcome.updates, seen) == ("failed", "setup", 0, [])
        assert text in outcome.reason
    assert two.run(toys.train, toys.Tokens(), trial)[0][0].status == "completed"


@REDUCERS
def test_weights_too_small_to_invert_do_not_break_the_gang(reducer, two):
    trial = toys.spec((8, 2, 2), updates=3, precision="fp32", noise_probe=True, reducer=reducer)
    statuses = {outcome.status for outcome, _ in two.run(toys.train, Tiny(), trial)}
    assert len(statuses) == 1
    assert two.run(toys.train, toys.Tokens(), trial)[0][0].status == "completed"


@REDUCERS
def test_models_that_differ_between_ranks_become_that_of_rank_0(reducer, two):
    (outcome, _, first), (_, _, second) = two.run(_watched, RankDependent(), toys.spec(updates=2, reducer=reducer))
    assert outcome.status == "completed", outcome.reason
    assert outcome.notes == ("the model's initial parameters differed between ranks: rank 0's were used",)
    assert first == second
    assert (first["mask"], first["frequencies"], first["scalar"]) == ([True, True], [1.0 + 0j], 0.0)


def test_fewer_samples_than_workers_leave_no_worker_without_work(four):
    # dreamquark-ai/tabnet#537: with drop_last, 3 samples over 4 ranks give every rank nothing and a loss of 0
    for outcome, seen in four.run(toys.train, Few(), toys.spec((1, 1, 4), updates=3)):
        assert (outcome.status, outcome.updates, outcome.samples_seen) == ("completed", 3, 12)
        # Twelve positions are four whole epochs of the samples 1, 2, 3.
        assert all(e.metrics["train/loss"] == pytest.approx(2.0) for e in seen)


class Few(Seen):
    """Three samples, whose loss is their number."""

    def model(self) -> nn.Module:
        return self.keep(nn.Linear(1, 1))

    def train_data(self) -> TensorRows:
        return TensorRows(torch.tensor([[1.0], [2.0], [3.0]]))

    val_data = train_data

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return batch[0].sum() + 0 * model(batch[0]).sum(), len(batch[0])


@pytest.mark.parametrize("split", [(8, 1, 1), (2, 4, 1), (4, 1, 2), (2, 2, 2), (1, 4, 2)])
@pytest.mark.parametrize("reducer", ["flat", "ddp"])
def test_every_update_has_its_one_scheduled_learning_rate_on_any_split(split, reducer, two):
    # huggingface/transformers#26827: with N processes the scheduler ran N times too fast
    trial = toys.spec(split, updates=10, lr=1.0, eval_every_samples=8, reducer=reducer)
    trial = replace(trial, lr=replace(trial.lr, decay="linear"))
    _, seen = _anywhere({2: two}, toys.Tokens(), trial)
    assert [e.metrics["lr"] for e in seen] == pytest.approx([1.0 - update / 10 for update in range(10)])
    assert [e.metrics["updates"] for e in seen] == list(range(1, 11))
