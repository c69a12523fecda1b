"""What an update's memory is made of, which layer grows worst, and what would free some of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator.theory.batch_plan import BatchPlan, InfeasiblePlan, replan


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes at the peak of an update on one worker, and of an evaluation.

    Attributes:
        plan: how the update was split.
        peak_bytes: the most that is held at once during updates.
        parameters: of these, parameters and buffers.
        gradients: the reducer's buffer, or two where the noise probe measures micro batches.
        optimizer: the optimizer's state; 0 where it is offloaded.
        activations: made in forward passes, by the innermost module that made them; "" outside of all modules.
        rest: everything else: the batch, gradients of activations, temporaries.
        evaluation_bytes: the peak of an evaluation, all else still held.
        layers: class name by module.
        host_bytes: beside all of these, in host memory: an offloaded optimizer's parameters, gradients and state.
    """

    plan: BatchPlan
    peak_bytes: int
    parameters: int
    gradients: int
    optimizer: int
    activations: dict[str, int]
    rest: int
    evaluation_bytes: int
    layers: dict[str, str] = field(repr=False)
    host_bytes: int = 0


def layer_growth(small: MemoryUse, large: MemoryUse) -> dict[str, float]:
    """Bytes of activations that one more sample of a micro batch adds, by module, the fastest growing first.

    Raises:
        ValueError: where the second micro batch is not the larger.
    """
    more = large.plan.micro_batch - small.plan.micro_batch
    if more <= 0:
        raise ValueError(f"micro batches {small.plan.micro_batch} and {large.plan.micro_batch}: give the smaller first")
    names = {*small.activations, *large.activations}
    found = {n: (large.activations.get(n, 0) - small.activations.get(n, 0)) / more for n in names}
    return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One way to need less memory.

    Attributes:
        what: in words.
        change: the spec's keys to set.
        frees_bytes: off the larger of both peaks, at most.
        keeps: what stays as it was, and what it costs.
    """

    what: str
    change: dict[str, object]
    frees_bytes: int
    keeps: str


def remedies(
    use: MemoryUse, *, eval_batch: int, precision: str, noise_probe: bool, on_cpu: bool = False
) -> tuple[Remedy, ...]:
    """What would free memory, what changes least of the training first.

    Estimates, from what is held at the peak: what freeing it does to the rest is told by a new prediction. Assumed:
    activations and the rest grow with the micro batch; autocast halves activations and adds half the parameters; of
    modules that are checkpointed, one at a time is held.

    Args:
        use: the update's memory.
        eval_batch: samples in an evaluation batch.
        precision: of the trial, such as ``fp32``.
        noise_probe: whether the trial measures the noise scale.
        on_cpu: whether the device is the host itself, so that offloading to it frees nothing.

    >>> use = MemoryUse(plan=BatchPlan(global_batch=64, micro_batch=32, accumulation=2, world_size=1), peak_bytes=1500,
    ...     parameters=100, gradients=200, optimizer=200, activations={"a.x": 300, "b.x": 500}, rest=200,
    ...     evaluation_bytes=900, layers={"": "Net", "a": "Block", "a.x": "Linear", "b": "Block", "b.x": "Linear"})
    >>> for one in remedies(use, eval_batch=256, precision="fp32", noise_probe=True):
    ...     print(one.frees_bytes, one.what)
    500 micro batch 16 with accumulation 4
    300 activation checkpointing of the 2 modules of class Block
    200 the optimizer's state in host memory
    350 bf16 autocast
    100 no noise probe, which keeps a second gradient
    200 an optimizer without state, such as SGD without momentum
    """
    found = [
        *_smaller(use, eval_batch, noise_probe),
        *_checkpointed(use),
        *_offloaded(use, on_cpu),
        *_half(use, precision),
        *_leaner(use, noise_probe),
    ]
    return tuple(remedy for remedy in found if remedy.frees_bytes > 0)


def _smaller(use: MemoryUse, eval_batch: int, noise_probe: bool) -> Iterator[Remedy]:
    if use.evaluation_bytes > use.peak_bytes and eval_batch > 1:
        grows = use.evaluation_bytes - use.parameters - use.gradients - use.optimizer
        yield Remedy(
            what=f"an evaluation batch of {eval_batch // 2}: evaluation holds more than updates do",
            change={"evaluation.batch": eval_batch // 2},
            frees_bytes=min(grows // 2, use.evaluation_bytes - use.peak_bytes),
            keeps="the same numbers; evaluation takes more passes",
        )
    plan = use.plan
    if plan.micro_batch > 1:
        try:
            less = replan(plan, plan.world_size, micro_batch_max=plan.micro_batch // 2)
        except InfeasiblePlan:  # cannot be: one sample always divides
            return
        grows = sum(use.activations.values()) + use.rest
        second = use.gradients if noise_probe and plan.world_size == plan.accumulation == 1 else 0
        yield Remedy(
            what=f"micro batch {less.micro_batch} with accumulation {less.accumulation}",
            change={"batch.micro": less.micro_batch, "batch.accumulation": less.accumulation},
            frees_bytes=grows * (plan.micro_batch - less.micro_batch) // plan.micro_batch - second,
            keeps="the same update, apart from batch norm and dropout; passes are less efficient",
        )


def _checkpointed(use: MemoryUse) -> Iterator[Remedy]:
    """The class of composite modules that frees the most; a module without parts would keep its inputs instead."""
    best: tuple[int, str, int] | None = None
    for name in sorted(set(use.layers.values())):
        modules = [m for m in _outermost(use, name) if any(part != m and _inside(part, m) for part in use.layers)]
        if not modules:
            continue
        held = [sum(size for at, size in use.activations.items() if _inside(at, module)) for module in modules]
        freed = sum(held) - max(held)
        if best is None or freed > best[0]:
            best = freed, name, len(modules)
    if best is not None:
        yield Remedy(
            what=f"activation checkpointing of the {best[2]} modules of class {best[1]}",
            change={"training.checkpoint_activations": best[1]},
            frees_bytes=best[0],
            keeps="the same update; their forward passes run twice",
        )


def _offloaded(use: MemoryUse, on_cpu: bool) -> Iterator[Remedy]:
    if not on_cpu:
        yield Remedy(
            what="the optimizer's state in host memory",
            change={"training.offload_optimizer": True},
            frees_bytes=use.optimizer,
            keeps="the same update, up to rounding; gradients go to the host and parameters back, and its CPUs step",
        )


def _half(use: MemoryUse, precision: str) -> Iterator[Remedy]:
    if precision in ("fp32", "fp64"):
        yield Remedy(
            what="bf16 autocast",
            change={"training.precision": "bf16"},
            frees_bytes=(sum(use.activations.values()) - use.parameters) // 2,
            keeps="the sizes of all updates, with 8 bits of precision in most products",
        )


def _leaner(use: MemoryUse, noise_probe: bool) -> Iterator[Remedy]:
    if noise_probe and use.plan.world_size == 1 and use.plan.accumulation > 1:
        yield Remedy(
            what="no noise probe, which keeps a second gradient",
            change={"training.noise_probe": False},
            frees_bytes=use.gradients // 2,
            keeps="the same updates; the noise scale is not measured",
        )
    yield Remedy(
        what="an optimizer without state, such as SGD without momentum",
        change={"optimizer.name": "SGD"},
        frees_bytes=use.optimizer,
        keeps="nothing of the trajectory: learning rates must be found again",
    )


def _outermost(use: MemoryUse, name: str) -> list[str]:
    """Modules of a class that are not inside of another of it."""
    found: list[str] = []
    for module, cls in use.layers.items():
        if cls == name and not any(_inside(module, outer) for outer in found):
            found.append(module)
    return found


def _inside(module: str, outer: str) -> bool:
    return module == outer or not outer or module.startswith(f"{outer}.")
