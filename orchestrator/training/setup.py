"""Everything a trial needs before its first update, built on every rank and agreed between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.config.trial import TrialSpec, canonical_hash
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.training.activation_checkpointing import checkpoint_activations
from orchestrator.training.batches import mover
from orchestrator.training.ddp import DdpReducer
from orchestrator.training.evaluate import Evaluator
from orchestrator.training.failures import Guard, first_failure
from orchestrator.training.flat import FlatReducer
from orchestrator.training.group import Group
from orchestrator.training.loader import open_loader
from orchestrator.training.memory import release
from orchestrator.training.notes import split_notes
from orchestrator.training.offload import offloaded
from orchestrator.training.optimizer import build_optimizer
from orchestrator.training.parts import Parts
from orchestrator.training.precision import Scaler, autocast, set_dtype
from orchestrator.training.probe import NoiseProbe
from orchestrator.training.rate import check_trial
from orchestrator.training.records import Failure
from orchestrator.training.reducer import Reducer
from orchestrator.training.requests import evaluation_requests, training_requests
from orchestrator.training.seeding import seed_everything
from orchestrator.training.stream import Stream, windows
from orchestrator.training.task import Task


def prepare(
    spec: TrialSpec, task: Task, group: Group, *, samples_seen: int = 0, beat: Callable[[], None] | None = None
) -> Parts | Failure:
    """Build the parts on every rank together.

    Args:
        samples_seen: where the stream of training samples begins.
        beat: called for every batch, of training and of evaluation.

    Returns:
        The parts, or on all ranks the same failure if building went wrong on any.
    """
    parts, facts, guard = None, None, Guard(group.rank, "setup")
    with guard:
        parts = _local_parts(spec, task, group, samples_seen, beat or _silent)
        facts = _facts(parts.model)
    answers = group.gather_objects((guard.failure, facts))
    found = first_failure(answer[0] for answer in answers) or _unlike([answer[1] for answer in answers])
    if found or parts is None:
        return found or _BROKEN
    if any(answer[1] != answers[0][1] for answer in answers):
        _copy_from_rank_0(parts.model, group)
        parts.notes += ("the model's initial parameters differed between ranks: rank 0's were used",)

    return _add_reducer(spec, parts, group, sync=True) or parts


def split_again(spec: TrialSpec, parts: Parts, group: Group, samples_seen: int) -> Failure | None:
    """Go on at `samples_seen` with another plan, on every rank together; weights and optimizer stay as they are.

    The reducer is built anew: a backward pass that broke leaves DDP unusable.

    Returns:
        The same failure on all ranks if it could not be done on one.
    """
    parts.drop_reducer()
    release(group.device)
    parts.probe.split(spec.plan)
    with Guard(group.rank, "setup") as guard:
        parts.batches = parts.load(spec.plan, samples_seen)
    return first_failure(group.gather_objects(guard.failure)) or _add_reducer(spec, parts, group, sync=False)


def _add_reducer(spec: TrialSpec, parts: Parts, group: Group, *, sync: bool) -> Failure | None:
    """Apart from the rest, because DDP's constructor is collective: a failed rank must not leave others inside it."""
    with Guard(group.rank, "setup") as guard:
        parts.reducer = _reducer(spec, parts, group, sync=sync)
    found = first_failure(group.gather_objects(guard.failure))
    if not found:
        parts.reducer.settle()
    return found


def _model(spec: TrialSpec, task: Task, group: Group) -> nn.Module:
    seed_everything(spec.seed)
    if group.device.type == "cuda":
        torch.cuda.manual_seed(spec.seed)
    model = set_dtype(task.model(), spec.precision).to(group.device)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("the model has no parameter that requires a gradient")
    if any(parameter.is_complex() for parameter in model.parameters()):
        raise ValueError("complex parameters are not supported: hold real and imaginary parts in two real ones")
    if spec.checkpoint_activations:
        checkpoint_activations(model, [spec.checkpoint_activations])
    return model


def _local_parts(spec: TrialSpec, task: Task, group: Group, samples_seen: int, beat: Callable[[], None]) -> Parts:
    check_trial(spec, group.world_size)
    model = _model(spec, task, group)
    train, val = task.train_data(), task.val_data()
    if len(train) < 1 or len(val) < 1:
        raise ValueError(f"{len(train)} training and {len(val)} validation samples: there must be at least one of each")
    name = canonical_hash([type(task).__module__, type(task).__qualname__, spec.task.name, spec.task.options])
    move = mover(group.device, double=spec.precision == "fp64")
    stream, stop = Stream(spec.seed, len(train)), spec.begins_at + spec.updates * spec.plan.global_batch

    def ready(batch: Any) -> Any:
        beat()
        return move(batch)

    def training_batches(plan: BatchPlan, start: int) -> Iterator[Any]:
        wanted = training_requests(stream, windows(plan, group.rank, start, stop))
        return map(ready, open_loader(train, wanted, spec.loader, key=f"{name} train"))

    def evaluation_batches(eval_batch: int) -> Iterator[Any]:
        wanted = evaluation_requests(len(val), eval_batch, group.rank, group.world_size)
        return map(ready, open_loader(val, wanted, spec.loader, key=f"{name} val"))

    def loss(batch: Any) -> tuple[Tensor, Any]:
        return task.loss(model, batch)

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return build_optimizer(spec.optimizer.name, spec.optimizer.options, parameters, lr=spec.lr.peak)

    context = autocast(group.device, spec.precision)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Parts(
        model=model,
        parameters=parameters,
        optimizer=offloaded(parameters, optimizer) if spec.offload_optimizer else optimizer(parameters),
        loss=loss,
        load=training_batches,
        batches=training_batches(spec.plan, samples_seen),
        evaluator=Evaluator(
            model,
            task.evaluate,
            group,
            names=list(task.metric_modes),
            size=len(val),
            batch=spec.eval_batch,
            load=evaluation_batches,
            forward_context=context,
        ),
        scaler=Scaler(spec.precision, spec.loss_scale),
        probe=NoiseProbe(spec.plan, enabled=spec.noise_probe),
        context=context,
        notes=split_notes(model),
    )


def _reducer(spec: TrialSpec, parts: Parts, group: Group, *, sync: bool) -> Reducer:
    probe = parts.probe
    if spec.reducer == "ddp" and group.world_size > 1:
        return DdpReducer(parts.loss, parts.model, parts.parameters, group, probe=probe.enabled, sync=sync)
    return FlatReducer(parts.loss, parts.parameters, group, probe=probe.enabled, micro_norms=probe.micro_norms)


def _facts(model: nn.Module) -> tuple[Any, ...]:
    """Shapes, and sums that nearly any difference between two models' numbers changes."""
    tensors = _tensors(model)
    shapes = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]
    tensors = [torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach() for tensor in tensors]
    sums = [tensor.sum(dtype=torch.float64).item() for tensor in tensors]
    norms = [tensor.norm(dtype=torch.float64).item() for tensor in tensors if tensor.is_floating_point()]
    return shapes, sums, norms


def _unlike(facts: list[Any]) -> Failure | None:
    for rank, (shapes, *_) in enumerate(facts):
        if shapes != facts[0][0]:
            message = "the model's shapes differ from rank 0's: model() must not depend on the rank"
            return Failure(rank=rank, phase="setup", kind="ValueError", message=message)
    return None


@torch.no_grad()
def _copy_from_rank_0(model: nn.Module, group: Group) -> None:
    for tensor in _tensors(model):
        if group.rank != 0:
            tensor.zero_()
        group.all_reduce(tensor)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _silent() -> None:
    """No one listens."""


_BROKEN = Failure(rank=0, phase="setup", kind="AssertionError", message="no rank built the trial's parts")
