"""All that a trial needs to go on from where it was, as tensors and plain values, and back."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.config.trial import TrialSpec
from orchestrator.training.parts import Parts
from orchestrator.training.progress import Progress
from orchestrator.training.seeding import generators, set_generators

State = dict[str, Any]
_FORMAT = 1
_EXTRA = "_extra_state"  # the end of torch's key for what a module saves beside tensors


class OtherTrial(ValueError):
    """A checkpoint that this trial cannot go on from."""


def shared_state(spec: TrialSpec, parts: Parts, progress: Progress) -> State:
    """A copy, in CPU memory, of what is equal on all ranks. It is taken on the training path, and so only copies.

    Raises:
        TypeError: the optimizer or a module keeps what is neither a tensor nor plain.
    """
    extra = {name: value for name, value in parts.model.state_dict().items() if name.endswith(_EXTRA)}
    found: State = _copied(
        {
            "format": _FORMAT,
            "trajectory": spec.trajectory,
            "parameters": dict(parts.model.named_parameters()),
            "extra": extra,
            "optimizer": parts.optimizer.state_dict(),
            "scaler": parts.scaler.state(),
            "probe": parts.probe.state(),
            "progress": progress.state(),
        }
    )
    return found


def own_state(parts: Parts, device: torch.device) -> State:
    """What may differ between ranks: generators, and buffers (copied) with a digest of them."""
    buffers = _copied(dict(parts.model.named_buffers()))
    digest = hashlib.sha256()
    for name, tensor in buffers.items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
    return {"generators": generators(device), "buffers": buffers, "digest": digest.hexdigest()}


def pack(state: State) -> memoryview:
    """The bytes of a state."""
    sink = io.BytesIO()
    torch.save(state, sink)
    return sink.getbuffer()


def unpack(data: bytes, trajectory: str) -> State:
    """The state that `pack` turned into `data`; nothing in it is run.

    Raises:
        OtherTrial: it is that of a trial of another `trajectory`, or of another version of this format.
    """
    state: State = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if state.get("format") != _FORMAT:
        raise OtherTrial(f"the checkpoint has format {state.get('format')!r}, not {_FORMAT}: start in another folder")
    if state["trajectory"] != trajectory:
        raise OtherTrial(
            f"the checkpoint is of trial {state['trajectory']}, and this is {trajectory}: only the split of the "
            "global batch, the reducer, the loader and what saves memory may change. Give each trial a folder of its "
            "own"
        )
    return state


@torch.no_grad()
def restore(state: State, parts: Parts, rank: int, device: torch.device, *, branch: bool = False) -> None:
    """Put the parts where `state` was taken. More ranks than were saved take the states of those in turn.

    A `branch` has options of the optimizer, and a noise scale to measure, of its own.
    """
    model = parts.model
    parameters, saved = dict(model.named_parameters()), state["parameters"]
    if {name: p.shape for name, p in parameters.items()} != {name: p.shape for name, p in saved.items()}:
        raise OtherTrial("the checkpoint's parameters are not those of the model: has the task's code changed?")
    for name, parameter in parameters.items():
        parameter.copy_(saved[name])
    _set_buffers(model, state["buffers"][rank % len(state["buffers"])])
    if state["extra"]:
        model.load_state_dict(state["extra"], strict=False)
    own = [{name: value for name, value in one.items() if name != "params"} for one in parts.optimizer.param_groups]
    _load_optimizer(parts.optimizer, state["optimizer"])
    parts.scaler.restore(state["scaler"])
    if branch:
        for group, options in zip(parts.optimizer.param_groups, own, strict=True):
            group.update(options)
    else:
        parts.probe.restore(state["probe"])
    set_generators(state["generators"][rank % len(state["generators"])], device)


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: State) -> None:
    optimizer.load_state_dict(saved)
    # torch casts all but `step` to the parameter's dtype, which changes the bits of scalars that are kept in another.
    for index, parameter in _numbered(optimizer):
        for name, value in saved["state"].get(index, {}).items():
            loaded = optimizer.state[parameter][name]
            if isinstance(value, Tensor) and loaded.dtype != value.dtype:
                optimizer.state[parameter][name] = value.to(loaded.device)


def _numbered(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, Any]]:
    return enumerate(parameter for group in optimizer.param_groups for parameter in group["params"])


def _set_buffers(model: nn.Module, saved: dict[str, Tensor]) -> None:
    for name, value in saved.items():
        module_name, _, short = name.rpartition(".")
        module = model.get_submodule(module_name)
        there = module._buffers.get(short)
        if there is not None and there.shape == value.shape and there.dtype == value.dtype:
            there.copy_(value)  # in place: others hold on to it
        else:
            module._buffers[short] = value.to(next(model.parameters()).device)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {name: _copied(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        kind = list if isinstance(value, list) else tuple
        return kind(_copied(one) for one in value)
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)  # numpy's numbers are subclasses, and would not be read again
    if value is None:
        return None
    raise TypeError(f"a checkpoint holds tensors and plain values only, and this is a {type(value).__name__}")
