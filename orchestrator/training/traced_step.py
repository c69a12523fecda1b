"""The real training step of a trial on tensors that have shapes and no memory, update by update."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from orchestrator.config.trial import LoaderSpec, TrialSpec
from orchestrator.training.failures import Guard
from orchestrator.training.flat import FlatReducer
from orchestrator.training.optimizer import step
from orchestrator.training.precision import set_dtype
from orchestrator.training.records import Failure
from orchestrator.training.seeding import isolated
from orchestrator.training.setup import prepare
from orchestrator.training.step import accumulate
from orchestrator.training.storages import HOST, Ledger
from orchestrator.training.task import Task
from orchestrator.training.traced import OneOf, TracedTask

T = TypeVar("T")

_MOST_UPDATES = 8


class NotTraceable(ValueError):
    """The step needs tensors' values to know their sizes, or failed; the message says which."""


@contextmanager
def traced_trial(spec: TrialSpec, task: Task) -> Iterator[TracedTrial]:
    """A trial of `spec` whose updates can be made one by one inside this context.

    The model is built in this process's memory once. Kernels are chosen as on a CPU. With the reducer `ddp`, the
    gradients' buffer is that of `flat`, which is as large as DDP's buckets together.

    Args:
        spec: its budget and learning rate are not looked at.
        task: read for the shapes of its largest samples, outside of the context, for it may keep what it reads.

    Raises:
        NotTraceable: where sizes depend on values, or building the trial raises; also from its methods.
    """
    ledger = Ledger(number=1)
    with isolated(torch.device("cpu")):
        fake = FakeTensorMode()
        model = _without_memory(set_dtype(task.model(), spec.precision), fake)
        layers = {name: type(module).__name__ for name, module in model.named_modules()}

        def tell(what: str) -> None:
            ledger.label = what

        traced = TracedTask(task, model, eval_rows=spec.eval_batch, tell=tell)
        with fake, ledger:
            ledger.file(_tensors(model), "parameters")
            trial = TracedTrial(_short(spec), traced, ledger, layers)
            yield trial
            trial.close()


class TracedTrial:
    """One worker's side of a trial without memory.

    Attributes:
        ledger: counts what is held, by ``parameters``, ``gradients``, ``optimizer``, ``data``, ``forward``,
            ``backward`` and ``update``, and as `HOST` what an offloaded optimizer has.
        layers: class name by module.
    """

    def __init__(self, spec: TrialSpec, task: TracedTask, ledger: Ledger, layers: dict[str, str]) -> None:
        self.ledger, self.layers = ledger, layers
        self._spec, self._group, self._updates = spec, OneOf(spec.plan.world_size), 0
        self._parts = _whole(prepare(spec, task, self._group))
        ledger.file(_tensors(self._parts.model), "parameters")
        ledger.watch(self._parts.model)
        assert isinstance(self._parts.reducer, FlatReducer)
        ledger.file(self._parts.reducer.buffers(), "gradients")
        if spec.offload_optimizer:
            ledger.file(_stepped(self._parts.optimizer), HOST)
        ledger.restart_peak()

    def update(self) -> None:
        """Load, forward and backward for each micro batch, then the optimizer's step; nothing is sent."""
        seen = self._updates * self._spec.plan.global_batch
        self._updates += 1
        share = accumulate(self._spec, self._parts, self._group, seen, failure=None, stop=False, pause=False)
        _whole(share.failure)
        self._parts.reducer.rescale(0.5)
        self.ledger.label = HOST if self._spec.offload_optimizer else "update"
        with Guard(0, "update") as guard:
            step(self._parts.optimizer, 0.1)
        _whole(guard.failure)
        self.ledger.file(_state(self._parts.optimizer), HOST if self._spec.offload_optimizer else "optimizer")
        self.ledger.label = "update"

    def evaluate(self) -> None:
        """One evaluation batch; no update comes after it."""
        self._parts.batches = iter(())
        self.ledger.number = 0  # also of its error codes
        _whole(self._parts.evaluator.run(None).failure)

    def close(self) -> None:
        """Let go of the gradients."""
        self._parts.drop_reducer()


def _short(spec: TrialSpec) -> TrialSpec:
    """The same update in a trial of a few of them, in this process, without DDP."""
    return dataclasses.replace(
        spec,
        budget_samples=_MOST_UPDATES * spec.plan.global_batch,
        lr=dataclasses.replace(spec.lr, warmup_samples=0, decay="none"),
        reducer="flat",
        loader=LoaderSpec(),
    )


def _without_memory(model: nn.Module, fake: FakeTensorMode) -> nn.Module:
    """`model` with shapes in place of its parameters and buffers; ties between them stay."""
    made: dict[int, Tensor] = {}

    def shape_of(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = fake.from_tensor(tensor)
        return made[id(tensor)]

    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = shape_of(tensor)  # type: ignore[assignment]
    # Its conversions are done, and torch cannot redo them on tensors without memory.
    model._apply = lambda fn, recurse=True: model  # type: ignore[method-assign]
    return model


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _stepped(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _state(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def _whole(result: T | Failure) -> T:
    if isinstance(result, Failure):
        raise NotTraceable(f"the step cannot be traced: {result.phase}: {result.kind}: {result.message}")
    return result
