"""The peak memory of a trial's update, predicted without a device: the real step is run on tensors without memory."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from orchestrator.config.trial import LoaderSpec, TrialSpec
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.theory.memory_use import MemoryUse
from orchestrator.training.flat import FlatReducer
from orchestrator.training.optimizer import step
from orchestrator.training.parts import Parts
from orchestrator.training.precision import set_dtype
from orchestrator.training.records import Failure
from orchestrator.training.seeding import isolated
from orchestrator.training.setup import prepare
from orchestrator.training.step import accumulate
from orchestrator.training.storages import Ledger
from orchestrator.training.task import Task
from orchestrator.training.traced import OneOf, TracedTask

T = TypeVar("T")

UPDATES = 2
"""The optimizer's state is made by the first one."""


class NotTraceable(ValueError):
    """The step needs tensors' values to know their sizes, or failed; the message says which."""


def predict_memory(spec: TrialSpec, task: Task) -> MemoryUse:
    """Predict the peak of `spec`'s updates on one worker.

    The model, which is built in this process's memory once, and all that its step makes are given shapes only. What
    `setup`, `step` and the optimizer allocate is counted as torch's storages; what a kernel uses inside, what the
    allocator rounds up and what libraries hold (a CUDA context, cuBLAS workspaces) is not. Kernels are chosen as on a
    CPU. With the reducer `ddp`, the buffer is that of `flat`, which is as large as DDP's buckets together.

    Args:
        spec: its `plan` is predicted, its budget and learning rate are not looked at.
        task: read for the shapes of its largest samples.

    Raises:
        NotTraceable: where sizes depend on values, or the step raises.
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
            return _traced(_short(spec), traced, ledger, layers)


def _traced(spec: TrialSpec, task: TracedTask, ledger: Ledger, layers: dict[str, str]) -> MemoryUse:
    group = OneOf(spec.plan.world_size)
    parts = _whole(prepare(spec, task, group))
    ledger.file(_tensors(parts.model), "parameters")
    ledger.watch(parts.model)
    ledger.file(_gradients(parts), "gradients")
    ledger.restart_peak()
    for update in range(UPDATES):
        seen = update * spec.plan.global_batch
        share = accumulate(spec, parts, group, seen, failure=None, stop=False, pause=False)
        _whole(share.failure)
        ledger.label = "update"
        parts.reducer.rescale(0.5)
        step(parts.optimizer, 0.1)
        ledger.file(_state(parts.optimizer), "optimizer")
    parts.batches = iter(())
    at_peak, peak = dict(ledger.at_peak), ledger.peak_bytes
    ledger.restart_peak()
    ledger.number = 0  # also of its error codes
    _whole(parts.evaluator.run(None).failure)
    parts.drop_reducer()
    return _prediction(spec.plan, peak, at_peak, ledger.peak_bytes, layers)


def _prediction(
    plan: BatchPlan, peak: int, at_peak: dict[tuple[str, str], int], evaluation: int, layers: dict[str, str]
) -> MemoryUse:
    known: Counter[str] = Counter()
    activations: Counter[str] = Counter()
    for (label, module), size in at_peak.items():
        if label == "forward" or module:  # in backward passes, modules run where they are recomputed
            activations[module] += size
        else:
            known[label] += size
    named = [known[label] for label in ("parameters", "gradients", "optimizer")]
    return MemoryUse(
        plan=plan,
        peak_bytes=peak,
        parameters=named[0],
        gradients=named[1],
        optimizer=named[2],
        activations=dict(activations.most_common()),
        rest=peak - sum(named) - sum(activations.values()),
        evaluation_bytes=evaluation,
        layers=layers,
    )


def _short(spec: TrialSpec) -> TrialSpec:
    """The same update in a trial that needs no more than a few of them, in this process, without DDP."""
    return dataclasses.replace(
        spec,
        budget_samples=(UPDATES + 1) * spec.plan.global_batch,
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


def _gradients(parts: Parts) -> list[Tensor]:
    reducer = parts.reducer
    assert isinstance(reducer, FlatReducer)
    return reducer.buffers()


def _state(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def _whole(result: T | Failure) -> T:
    if isinstance(result, Failure):
        raise NotTraceable(f"the step cannot be traced: {result.phase}: {result.kind}: {result.message}")
    return result
