"""Predicted memory against what torch's own CPU allocator gives out while the same updates really run."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from orchestrator.config.load import spec_from_dict
from orchestrator.config.resolve import resolve_trial
from orchestrator.config.trial import TrialSpec
from orchestrator.theory.memory_use import layer_growth, remedies
from orchestrator.training.group import Solo
from orchestrator.training.memory_prediction import predict_memory
from orchestrator.training.optimizer import step
from orchestrator.training.parts import Parts
from orchestrator.training.registry import load_task
from orchestrator.training.setup import prepare
from orchestrator.training.step import accumulate
from orchestrator.training.traced_step import NotTraceable

CLOSE = 0.03


def spec_of(
    task: str = "digits",
    *,
    micro: int = 32,
    accumulation: int = 1,
    optimizer: str = "AdamW",
    precision: str = "fp32",
    probe: bool = True,
    saved: str | None = None,
    offload: bool = False,
    **options: Any,
) -> TrialSpec:
    raw = {
        "task": {"name": task, **options},
        "batch": {"global": micro * accumulation, "micro": micro, "accumulation": accumulation},
        "optimizer": {"name": optimizer},
        "training": {
            "precision": precision,
            "noise_probe": probe,
            "checkpoint_activations": saved,
            "offload_optimizer": offload,
        },
        "budget": {"samples": 100_000, "eval_every": 100_000},
        "lr": {"base": 1e-3},
        "cluster": {"workers": 1},
    }
    return resolve_trial(spec_from_dict(raw), {})


def run(spec: TrialSpec, updates: int = 3) -> None:
    """The same updates on real tensors."""
    task, group = load_task(spec.task.name, spec.task.options), Solo()
    parts = prepare(spec, task, group)
    assert isinstance(parts, Parts)
    for update in range(updates):
        seen = update * spec.plan.global_batch
        share = accumulate(spec, parts, group, seen, failure=None, stop=False, pause=False)
        assert share.failure is None
        parts.reducer.reduce(share)
        parts.reducer.rescale(0.5)
        step(parts.optimizer, 1e-3)


def ready(spec: TrialSpec) -> None:
    """What a task reads once a process is no trial's memory."""
    task = load_task(spec.task.name, spec.task.options)
    task.train_data(), task.val_data()
    gc.collect()


def allocated(spec: TrialSpec) -> int:
    """The most that torch's CPU allocator had given out at once, from the model's making on."""
    ready(spec)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run(spec)
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    events = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    held = most = 0
    for _, size in events:
        held += size
        most = max(most, held)
    return most


class Count(TorchDispatchMode):
    """The most bytes of real storages alive after any operation, summed anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: Any = weakref.WeakValueDictionary()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.alive[id(value.untyped_storage())] = value.untyped_storage()
        self.most = max(self.most, sum(storage.nbytes() for storage in self.alive.values()))
        return result


def counted(spec: TrialSpec) -> int:
    """The peak by `Count`."""
    ready(spec)
    with Count() as count:
        run(spec)
    return count.most


RESNET = "memory_tasks:SmallResNet"
SPECS = {
    "digits": spec_of(),
    "digits, sgd": spec_of(optimizer="SGD"),
    "digits, large": spec_of(micro=700, hidden=256, depth=3),
    "digits, accumulated": spec_of(accumulation=4),
    "digits, no probe": spec_of(accumulation=4, probe=False),
    "digits, float64": spec_of(precision="fp64"),
    "digits, cnn": spec_of(model="cnn", depth=3),
    "bytes": spec_of("bytes", micro=8),
    "bytes, wide": spec_of("bytes", micro=8, width=128, layers=3, context=64),
    "bytes, bf16": spec_of("bytes", micro=8, precision="bf16"),
    "resnet": spec_of(RESNET, micro=16),
    "resnet, small": spec_of(RESNET, micro=2, optimizer="SGD"),
}


# What a convolution's and a batch norm's CPU kernels use inside is no tensor, and on another device is something else.
CLOSE_TO_ALLOCATOR = {"resnet": 0.08, "resnet, small": 0.08}


@pytest.mark.parametrize("name", SPECS)
def test_the_predicted_peak_is_that_of_the_same_updates_on_real_tensors(name: str) -> None:
    spec = SPECS[name]
    found = predict_memory(spec, load_task(spec.task.name, spec.task.options))
    assert found.peak_bytes == pytest.approx(counted(spec), rel=CLOSE)
    assert found.peak_bytes == pytest.approx(allocated(spec), rel=CLOSE_TO_ALLOCATOR.get(name, CLOSE))
    parts = [found.parameters, found.gradients, found.optimizer, *found.activations.values(), found.rest]
    assert sum(parts) == found.peak_bytes
    assert min(parts) >= 0


SAVED = {
    "digits": spec_of(micro=700, hidden=256, depth=3, saved="ReLU"),
    "bytes": spec_of("bytes", micro=8, layers=4, saved="_Block"),
    "bytes, bf16": spec_of("bytes", micro=8, layers=4, precision="bf16", saved="_Block"),
    "resnet": spec_of(RESNET, micro=16, saved="Residual"),
}


@pytest.mark.parametrize("name", SAVED)
def test_with_activation_checkpointing_too(name: str) -> None:
    spec = SAVED[name]
    task = load_task(spec.task.name, spec.task.options)
    found = predict_memory(spec, task)
    assert found.peak_bytes == pytest.approx(counted(spec), rel=CLOSE)
    if name != "digits":
        assert found.peak_bytes < 0.8 * predict_memory(replace(spec, checkpoint_activations=None), task).peak_bytes


@pytest.mark.parametrize("optimizer", ["AdamW", "RMSprop"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_an_offloaded_optimizer_is_beside_the_device(optimizer: str, precision: str) -> None:
    spec = spec_of("bytes", micro=8, optimizer=optimizer, precision=precision)
    off, task = replace(spec, offload_optimizer=True), load_task("bytes", {})
    found, plain = predict_memory(off, task), predict_memory(spec, task)
    assert (found.optimizer, plain.host_bytes) == (0, 0)
    assert found.gradients == plain.gradients
    assert found.peak_bytes <= plain.peak_bytes - plain.optimizer
    assert found.evaluation_bytes == plain.evaluation_bytes - plain.optimizer
    assert found.host_bytes >= found.parameters * 2 + plain.optimizer
    # Without a device, the process holds both.
    assert found.peak_bytes + found.host_bytes == pytest.approx(counted(off), rel=CLOSE)
    assert found.peak_bytes + found.host_bytes == pytest.approx(allocated(off), rel=CLOSE)


def test_the_parts_are_what_they_are_called() -> None:
    spec = spec_of(hidden=32)
    found = predict_memory(spec, load_task(spec.task.name, spec.task.options))
    weights = 4 * (64 * 32 + 32 + 32 * 10 + 10)
    assert found.parameters == weights
    assert weights <= found.gradients <= weights + 4 * 64
    assert 2 * weights <= found.optimizer <= 2 * weights + 64
    sgd = predict_memory(spec_of(hidden=32, optimizer="SGD"), load_task("digits", {"hidden": 32}))
    assert sgd.optimizer == 0
    twice = predict_memory(spec_of(hidden=32, accumulation=2), load_task("digits", {"hidden": 32}))
    assert found.gradients < twice.gradients <= 2 * found.gradients  # the noise probe's second buffer
    assert found.layers["0"] == "Linear"


def test_memory_is_flat_as_accumulation_grows() -> None:
    found = [predict_memory(spec_of("bytes", micro=4, accumulation=a), load_task("bytes", {})) for a in (2, 4, 8)]
    assert len({one.peak_bytes for one in found}) == 1


def test_the_layer_that_grows_worst_is_named() -> None:
    small, large = (predict_memory(spec_of(RESNET, micro=m), load_task(RESNET, {})) for m in (4, 12))
    growth = layer_growth(small, large)
    assert next(iter(growth)).startswith(("0.", "1"))  # full resolution
    assert list(growth.values()) == sorted(growth.values(), reverse=True)
    total = sum(large.activations.values()) - sum(small.activations.values())
    assert sum(growth.values()) * 8 == pytest.approx(total)
    with pytest.raises(ValueError, match="give the smaller first"):
        layer_growth(large, small)


def test_remedies_free_about_what_they_say() -> None:
    options = {"micro": 16, "accumulation": 2, "layers": 4}
    spec, task = spec_of("bytes", **options), load_task("bytes", {"layers": 4})
    now = predict_memory(spec, task)
    said = {
        remedy.what: remedy.frees_bytes for remedy in remedies(now, eval_batch=256, precision="fp32", noise_probe=True)
    }
    for remedy in remedies(now, eval_batch=256, precision="fp32", noise_probe=True):
        raw = spec_from_dict({"task": {"name": "bytes"}}).to_dict()
        for key, value in remedy.change.items():
            section, _, name = key.partition(".")
            assert name in raw[section]
            raw[section][name] = value
        assert spec_from_dict(raw)
    true = {
        "micro batch 8 with accumulation 4": predict_memory(spec_of("bytes", micro=8, accumulation=4, layers=4), task),
        "activation checkpointing of the 4 modules of class _Block": predict_memory(
            spec_of("bytes", saved="_Block", **options), task
        ),
        "the optimizer's state in host memory": predict_memory(spec_of("bytes", offload=True, **options), task),
        "bf16 autocast": predict_memory(spec_of("bytes", precision="bf16", **options), task),
        "no noise probe, which keeps a second gradient": predict_memory(spec_of("bytes", probe=False, **options), task),
    }
    for what, then in true.items():
        assert said[what] == pytest.approx(now.peak_bytes - then.peak_bytes, rel=0.3), what


def test_the_longest_samples_are_predicted() -> None:
    name = "memory_tasks:Words"
    found = predict_memory(spec_of(name, micro=64), load_task(name, {}))
    logits = 64 * 50 * 100 * 4
    assert logits <= found.peak_bytes - found.parameters - found.gradients - found.optimizer
    assert found.evaluation_bytes >= 2 * 50 * 100 * 4


def test_sizes_that_depend_on_values_are_not_predicted() -> None:
    name = "memory_tasks:Words"
    with pytest.raises(NotTraceable, match="the step cannot be traced: forward: DynamicOutputShape"):
        predict_memory(spec_of(name, masked=True), load_task(name, {"masked": True}))


def test_an_optimizer_that_reads_its_state_is_not_predicted() -> None:
    with pytest.raises(NotTraceable, match="the step cannot be traced: update: ZeroDivisionError"):
        predict_memory(spec_of(optimizer="NAdam"), load_task("digits", {}))


def test_a_prediction_leaves_the_tasks_data_as_it_was() -> None:
    task = load_task("digits", {})
    before = task.train_data().fetch([0, 1], None)[0].sum().item()
    predict_memory(spec_of(), task)
    again = load_task("digits", {}).train_data().fetch([0, 1], None)[0].sum().item()
    assert before == again
