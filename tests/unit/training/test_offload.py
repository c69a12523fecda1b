"""An optimizer over masters in host memory, stepped beside one over the parameters themselves."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from test_run_trial import spec as trial_of
from test_run_trial import train
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from orchestrator.config.trial import OptimizerRef, TrialSpec
from orchestrator.tasks.digits import Digits
from orchestrator.training.offload import offloaded
from orchestrator.training.optimizer import build_optimizer, step


def parameters(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(17, 5), (3,), (), (2, 3, 4, 5)]
    made = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    made[-1].data = made[-1].data.to(memory_format=torch.channels_last)
    return made


def pull(many: list[nn.Parameter], seed: int) -> None:
    """The same gradients for the same seed, in place where there are some."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in many:
        grad = torch.randn(parameter.shape, generator=generator)
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(grad)


def pair(name: str, **options: Any) -> tuple[list[nn.Parameter], Any, list[nn.Parameter], Any]:
    """Parameters and optimizer, without and with offloading."""
    plain, off = parameters(), parameters()

    def build(many: list[nn.Parameter]) -> torch.optim.Optimizer:
        return build_optimizer(name, options, many, lr=0.1)

    return plain, build(plain), off, offloaded(off, build)


def same(one: list[nn.Parameter], other: list[nn.Parameter]) -> bool:
    return all(map(torch.equal, one, other))


NAMES = {
    "SGD": {},
    "momentum": {"name": "SGD", "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "AdamW": {},
    "Adam, foreach": {"name": "Adam", "foreach": True, "amsgrad": True},
    "Adagrad": {},
    "NAdam": {},
    "RMSprop": {"centered": True},
    "Adafactor": {},
}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_and_each_loads_the_others_state(name: str) -> None:
    plain, one, off, other = pair(**{"name": name, **NAMES[name]})
    for update in range(6):
        if update == 3:
            before, after = copy.deepcopy(one.state_dict()), copy.deepcopy(other.state_dict())
            one.load_state_dict(after)
            other.load_state_dict(before)
        for many, optimizer in ((plain, one), (off, other)):
            pull(many, update)
            step(optimizer, 0.1 / (1 + update))
        assert same(plain, off), update
    assert one.state_dict()["param_groups"] == other.state_dict()["param_groups"]


def test_what_else_changes_a_parameter_is_kept() -> None:
    plain, one, off, other = pair("AdamW")
    for update in range(4):
        for many, optimizer in ((plain, one), (off, other)):
            if update != 1:
                with torch.no_grad():
                    many[0].clamp_(-0.5, 0.5)
            pull(many, update)
            step(optimizer, 0.1)
        assert same(plain, off), update


def test_parameters_on_the_device_stay_where_they_are_and_are_let_go() -> None:
    off = parameters()
    where = [parameter.data_ptr() for parameter in off]
    optimizer = offloaded(off, lambda many: torch.optim.SGD(many, lr=0.1, momentum=0.9))
    pull(off, 0)
    optimizer.step()
    assert [parameter.data_ptr() for parameter in off] == where
    assert not {id(parameter) for parameter in off} & {id(p) for p in optimizer.param_groups[0]["params"]}
    gone = weakref.ref(off[0])
    del off, optimizer
    gc.collect()
    assert gone() is None


def test_masters_and_gradients_beside_a_gpu_are_page_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []
    right = torch.empty_like

    def empty_like(tensor: torch.Tensor, *, device: str, pin_memory: bool, **options: Any) -> torch.Tensor:
        asked.append((device, pin_memory))
        return right(tensor, device=device, **options)

    monkeypatch.setattr(torch, "empty_like", empty_like)
    with FakeTensorMode():
        offloaded([nn.Parameter(torch.empty(3, device="cuda"))], lambda many: torch.optim.SGD(many, lr=0.1))
        offloaded([nn.Parameter(torch.empty(3))], lambda many: torch.optim.SGD(many, lr=0.1))
    assert asked == [("cpu", True), ("cpu", False)]


class Cramped(Digits):
    """Has no memory for more than 16 samples at once."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        if len(batch[0]) > 16:
            raise MemoryError
        return super().loss(model, batch)


@pytest.mark.parametrize("task", [Digits, Cramped])
@pytest.mark.parametrize("changes", [{}, {"grad_clip": 0.1}, {"precision": "bf16"}, {"precision": "fp16"}], ids=str)
def test_a_whole_trial(task: type[Digits], changes: dict[str, Any]) -> None:
    def told(spec: TrialSpec) -> Any:
        outcome, seen = train(task(), spec)
        curve = [(one.metrics["val/loss"], one.metrics["train/loss"], one.metrics["grad_norm"]) for one in seen]
        return outcome.status, outcome.plan, outcome.noise, outcome.notes, curve

    common = {"updates": 12, "eval_every_samples": 256, "optimizer": OptimizerRef(name="AdamW"), "lr": 0.01, **changes}
    plain = told(trial_of(32, 2, **common))
    assert plain[0] == "completed"
    assert plain[1]["micro_batch"] == (32 if task is Digits else 16)
    assert told(trial_of(32, 2, offload_optimizer=True, **common)) == plain
