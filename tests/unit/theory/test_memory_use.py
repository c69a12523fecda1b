"""Remedies of a want of memory: what is offered, in which order, and what it says to free."""

from __future__ import annotations

from typing import Any

from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.theory.memory_use import MemoryUse, Remedy, remedies


def use(**changed: Any) -> MemoryUse:
    given: dict[str, Any] = {
        "plan": BatchPlan(global_batch=32, micro_batch=32, accumulation=1, world_size=1),
        "peak_bytes": 1500,
        "parameters": 100,
        "gradients": 100,
        "optimizer": 200,
        "activations": {"0.up": 300, "1.up": 500},
        "rest": 300,
        "evaluation_bytes": 900,
        "layers": {"": "Net", "0": "Block", "0.up": "Linear", "1": "Block", "1.up": "Linear"},
    }
    return MemoryUse(**given | changed)


def offered(found: MemoryUse, precision: str = "fp32", noise_probe: bool = True) -> dict[str, Remedy]:
    return {
        one.what.split()[0]: one for one in remedies(found, eval_batch=64, precision=precision, noise_probe=noise_probe)
    }


def test_what_changes_the_training_least_comes_first() -> None:
    assert list(offered(use(evaluation_bytes=2000))) == ["an", "micro", "activation", "the", "bf16"]
    assert list(offered(use())) == ["micro", "activation", "the", "bf16", "an"]


def test_an_offloaded_optimizer_frees_its_state_once() -> None:
    assert offered(use())["the"].change == {"training.offload_optimizer": True}
    assert offered(use())["the"].frees_bytes == 200
    assert "the" not in offered(use(optimizer=0, host_bytes=400))
    assert all(
        "offload" not in str(one.change)
        for one in remedies(use(), eval_batch=64, precision="fp32", noise_probe=True, on_cpu=True)
    )


def test_a_first_accumulation_costs_the_noise_probes_second_gradient() -> None:
    assert offered(use())["micro"].frees_bytes == (800 + 300) // 2 - 100
    assert offered(use(), noise_probe=False)["micro"].frees_bytes == (800 + 300) // 2
    assert offered(use())["micro"].change == {"batch.micro": 16, "batch.accumulation": 2}


def test_what_cannot_help_is_not_offered() -> None:
    one = BatchPlan(global_batch=1, micro_batch=1, accumulation=1, world_size=1)
    leaves = {"": "Net", "0": "Linear", "0.up": "Linear", "1.up": "Linear"}
    found = offered(use(plan=one, optimizer=0, layers=leaves, activations={"0.up": 10}), precision="bf16")
    assert found == {}


def test_an_odd_micro_batch_is_split_without_rounding() -> None:
    odd = BatchPlan(global_batch=45, micro_batch=45, accumulation=1, world_size=1)
    assert offered(use(plan=odd))["micro"].change == {"batch.micro": 15, "batch.accumulation": 3}
