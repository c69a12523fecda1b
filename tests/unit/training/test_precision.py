"""Number formats, and the life of the fp16 loss scale."""

from __future__ import annotations

import torch
from torch import nn

from orchestrator.config.trial import LossScale
from orchestrator.training.precision import Scaler, autocast, set_dtype


def test_scale_halves_on_overflow_and_doubles_after_its_interval():
    scaler = Scaler("fp16", LossScale(initial=8.0, growth_interval=3))
    scaler.succeeded()
    scaler.succeeded()
    scaler.overflowed()
    assert scaler.scale == 4.0
    for scale in (4.0, 4.0, 8.0, 8.0):
        scaler.succeeded()
        assert scaler.scale == scale
    for _ in range(3):
        scaler.overflowed()
    assert (scaler.scale, scaler.collapsed) == (1.0, False)
    scaler.overflowed()
    assert scaler.collapsed


def test_other_precisions_do_not_scale():
    for precision in ("fp32", "fp64", "bf16"):
        scaler = Scaler(precision, LossScale(initial=8.0, growth_interval=1))
        scaler.succeeded()
        assert (scaler.scale, scaler.dynamic) == (1.0, False)


def test_parameters_are_float64_or_float32_and_matmuls_low():
    for precision, dtype, out in (
        ("fp32", torch.float32, torch.float32),
        ("fp64", torch.float64, torch.float64),
        ("bf16", torch.float32, torch.bfloat16),
        ("fp16", torch.float32, torch.float16),
    ):
        model = set_dtype(nn.Linear(2, 2).half(), precision)
        context = autocast(torch.device("cpu"), precision)
        for _ in range(2):
            with context:
                assert model(torch.ones(1, 2, dtype=dtype)).dtype == out
        assert model.weight.dtype == dtype
