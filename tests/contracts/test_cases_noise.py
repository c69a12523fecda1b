"""The noise scale as a training run measures it, on gradients whose answer is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from orchestrator.config.trial import LossScale, LrPlan, OptimizerRef, TaskRef, TrialSpec
from orchestrator.tasks.arrays import TensorRows
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.theory.noise_scale import components, estimate
from orchestrator.training.group import Solo
from orchestrator.training.loop import run_trial
from orchestrator.training.probe import NoiseProbe
from orchestrator.training.reducer import Share, Totals
from orchestrator.training.task import Task


class Known(Task):
    """loss = 0.5 |theta - x|^2 with theta - E[x] = ones(10) and noise of deviation 2: S = 40, G2 = 10, B = 4.

    Theta is spread over parameters of several shapes, since a norm must be that of all of them together.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self.rows = rows

    def model(self) -> nn.Module:
        model = nn.ParameterList([nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2))])
        return model.append(nn.Parameter(torch.zeros(self.rows.shape[1] - 7)))

    def train_data(self) -> TensorRows:
        return TensorRows(self.rows)

    def val_data(self) -> TensorRows:
        return TensorRows(self.rows[:1])

    def loss(self, model: nn.Module, batch: Any) -> Any:
        theta = torch.cat([parameter.flatten() for parameter in model])
        return 0.5 * (theta - batch[0]).square().sum(), len(batch[0])


def measured(rows: torch.Tensor, micro: int, accumulation: int, updates: int, **changes: Any) -> dict[str, Any]:
    total = micro * accumulation
    fields: dict[str, Any] = {
        "task": TaskRef(name="here:Known"),
        "seed": 5,
        "plan": BatchPlan(global_batch=total, micro_batch=micro, accumulation=accumulation, world_size=1),
        "lr": LrPlan(base=0.0, rule="none", peak=0.0, reference_batch=1),
        "optimizer": OptimizerRef(name="SGD"),
        "budget_samples": updates * total,
        "eval_every_samples": updates * total,
        "precision": "fp64",
    }
    outcome = run_trial(TrialSpec(**(fields | changes)), Known(rows), Solo(), lambda evaluation: False)
    assert outcome.status == "completed", outcome.reason
    assert outcome.noise is not None
    return outcome.noise


def measured_in_order(rows: torch.Tensor, micro: int, accumulation: int, updates: int) -> dict[str, Any]:
    """As a probe sees rows that come in order: gradients are theta - x at theta = 0."""
    plan = BatchPlan(global_batch=micro * accumulation, micro_batch=micro, accumulation=accumulation, world_size=1)
    probe = NoiseProbe(plan, enabled=True)
    for update in rows[: updates * plan.global_batch].reshape(updates, accumulation, micro, -1):
        squares = update.mean(dim=1).square().sum(dim=1).tolist()
        share = Share(micro_norms=[(square, float(micro)) for square in squares])
        totals = Totals(
            loss=0.0, square_sum=0.0, weight=float(plan.global_batch), inverse_sum=0.0, counted=0.0,
            errors=0, too_big=0, stops=0, pauses=0, grad_norm=0.0,
        )  # fmt: skip
        probe.add(totals, share, float(update.mean(dim=(0, 1)).norm()))
    found = probe.outcome()
    assert found is not None
    return found


def normal_rows(n: int) -> torch.Tensor:
    return -1.0 + 2.0 * torch.randn(n, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("clip", [None, 1.0, 1e-3])
def test_one_window_of_known_norms_gives_the_known_answer_also_when_clipped(clip: float | None) -> None:
    # bigscience-workshop/Megatron-DeepSpeed#33, wandb/senpai#978: |gs|^2 = 50 and |gb|^2 = 15 at 1 and 8 samples.
    # Eight gradients of mean square norm 50 whose mean has square norm 15, in every window the same.
    mean, spread = torch.zeros(2, 8, 10, dtype=torch.float64)
    mean[:, 0] = math.sqrt(15.0)
    spread[:, 4] = torch.tensor([1.0, -1.0] * 4).double() * math.sqrt(20.0)
    spread[:, 9] = torch.tensor([1.0, 1.0, -1.0, -1.0] * 2).double() * math.sqrt(15.0)
    noise = measured(mean + spread, 1, 8, 20, grad_clip=clip)
    assert (noise["trace"], noise["g2"]) == pytest.approx((40.0, 10.0), rel=1e-9)
    assert noise["value"] == pytest.approx(4.0, rel=1e-9)


@pytest.mark.parametrize("changes", [{"grad_clip": 1.0}, {"precision": "fp16"}])
def test_the_run_measures_before_clipping_and_without_the_loss_scale(changes: dict[str, Any]) -> None:
    # wandb/senpai#978: every step was clipped, and such gradients all have the norm 1
    noise = measured(normal_rows(8000), 8, 4, 250, **changes)
    assert noise["value"] == pytest.approx(4.0, rel=0.15)
    assert noise["low"] < 4.0 < noise["high"]
    assert (noise["trace"], noise["g2"]) == pytest.approx((40.0, 10.0), rel=0.1)


def test_windows_whose_gradient_overflowed_are_dropped_and_counted() -> None:
    # the loss scale halves until the squares of the gradients are numbers
    noise = measured(normal_rows(8000), 8, 4, 250, precision="fp16", loss_scale=LossScale(initial=2.0**127))
    assert noise["dropped"] > 0
    assert noise["windows"] + noise["dropped"] == 250
    assert noise["low"] < 4.0 < noise["high"]


def test_the_end_of_a_run_is_told_beside_the_whole() -> None:
    # the second half of the stream is four times as noisy: B = 4, then 16
    rows = normal_rows(32 * 600)
    rows[len(rows) // 2 :] = -1.0 + 2.0 * (rows[len(rows) // 2 :] + 1.0)
    noise = measured_in_order(rows, 8, 4, 600)
    assert noise["end_low"] < 16.0 < noise["end_high"]
    assert noise["end_windows"] == 60
    assert noise["value"] == pytest.approx(10.0, rel=0.2)
    assert noise["high"] < noise["end_high"]


@pytest.mark.parametrize(("micro", "accumulation"), [(16, 2), (2, 16)])
def test_the_answer_does_not_depend_on_the_split(micro: int, accumulation: int) -> None:
    # ray-project/ray#3907: prove it on a known answer first
    noise = measured(normal_rows(6400), micro, accumulation, 200)
    assert noise["low"] < 4.0 < noise["high"]
    assert noise["high"] - noise["low"] < 3.0


def test_a_signal_that_is_not_clearly_there_is_not_determined_and_never_negative() -> None:
    # kingoflolz/mesh-transformer-jax#82: half of the single windows have |G|^2 <= 0
    noise = measured(normal_rows(640) + 1.0, 1, 2, 60)
    assert noise["value"] is None
    assert noise["reason"].startswith("not determined: |G|^2 is not clearly above 0")


@settings(max_examples=60, deadline=None)
@given(trace=st.floats(1e-3, 1e6), g2=st.floats(1e-3, 1e6), small=st.integers(1, 100), ratio=st.integers(2, 100))
def test_the_definition_is_mccandlish_s_and_its_mutants_are_seen(trace, g2, small, ratio) -> None:
    # paiml/entrenar#125 and bigscience-workshop/Megatron-DeepSpeed#33
    big = small * ratio
    small_sq, big_sq = g2 + trace / small, g2 + trace / big
    s, g = components(small_sq, big_sq, small, big)
    assert (float(s), float(g)) == pytest.approx((trace, g2), rel=1e-6, abs=1e-9 * (trace + g2) * big)
    summed, _ = components(small_sq, big_sq * ratio * ratio, small, big)
    divided, _ = components(small_sq / ratio**2, big_sq, small, big)
    assert float(summed) < 0
    assert float(divided) < 0
    found = estimate(np.full(40, float(summed)), np.full(40, max(float(g), 1e-6)))
    assert found.value is None
