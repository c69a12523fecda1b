"""Learning rate, warmup and schedule: what people found wrong elsewhere, from a user's spec to each update's rate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config.check import Facts, check_spec
from orchestrator.config.load import spec_from_dict
from orchestrator.config.resolve import resolve_trial
from orchestrator.config.trial import TrialSpec
from orchestrator.training.rate import learning_rate

RULES = st.sampled_from(["none", "sqrt", "linear", "power", "noise"])


def trial(
    *, workers: int, micro: int, accumulation: int, reference: int = 64, budget: int = 10_000, **lr: Any
) -> TrialSpec:
    """What a spec on so many workers resolves to."""
    raw = {
        "task": {"name": "digits"},
        "batch": {
            "global": workers * micro * accumulation,
            "reference": reference,
            "micro": micro,
            "accumulation": accumulation,
        },
        "lr": {"exponent": 0.7, "noise_scale": 300.0, "warmup": 0, "decay": "none", **lr},
        "cluster": {"workers": workers},
        "budget": {"samples": budget, "eval_every": budget},
    }
    return resolve_trial(spec_from_dict(raw), {})


def rates(spec: TrialSpec) -> list[float]:
    """The learning rate of each update."""
    return [learning_rate(spec, update * spec.plan.global_batch) for update in range(spec.updates)]


@pytest.mark.parametrize(("workers", "accumulation"), [(1, 1), (2, 1), (4, 1), (2, 2), (1, 4)])
@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_the_rate_is_half_the_peak_half_way_and_zero_only_at_the_end(
    decay: str, workers: int, accumulation: int
) -> None:
    # huggingface/transformers#26827, huggingface/accelerate#662: zero at half the run on two GPUs
    micro = 64 // workers // accumulation
    spec = trial(
        workers=workers, micro=micro, accumulation=accumulation, budget=6400, base=0.3, rule="none", decay=decay
    )
    found = rates(spec)
    assert len(found) == 100
    assert found[0] == 0.3
    assert found[50] == pytest.approx(0.15)
    assert all(rate > 0 for rate in found)
    assert found == sorted(found, reverse=True)
    assert learning_rate(spec, 6400) == 0.0


@pytest.mark.parametrize(
    ("micro", "workers", "accumulation", "peak"),
    [(8, 2, 1, 0.02), (1, 16, 1, 0.02), (1, 2, 1, 0.0025), (8, 4, 1, 0.04), (4, 2, 2, 0.02), (1, 1, 16, 0.02)],
)
def test_linear_scaling_counts_the_samples_of_all_workers_and_micro_batches(micro, workers, accumulation, peak) -> None:
    # open-mmlab/mmdetection#351, mala-project/mala#422: "batch" taken per GPU, or as the number of workers
    spec = trial(workers=workers, micro=micro, accumulation=accumulation, reference=16, base=0.02, rule="linear")
    assert spec.lr.peak == pytest.approx(peak, rel=1e-12)


@pytest.mark.parametrize(
    ("workers", "micro", "accumulation", "peak"),
    [(1, 64, 1, 0.1), (4, 16, 1, 0.1), (4, 64, 1, 0.4), (1, 32, 2, 0.1), (2, 8, 4, 0.1), (8, 16, 1, 0.2)],
)
def test_a_rate_found_on_one_worker_travels_with_its_global_batch(workers, micro, accumulation, peak) -> None:
    # Lightning-AI/pytorch-lightning#4878, open-mmlab/mmengine#894
    spec = trial(workers=workers, micro=micro, accumulation=accumulation, base=0.1, rule="linear")
    assert spec.lr.peak == pytest.approx(peak, rel=1e-12)


splits = st.sampled_from([(w, m, 48 // w // m) for w in (1, 2, 3, 4) for m in (1, 2, 4, 12) if 48 % (w * m) == 0])


@settings(max_examples=60, deadline=None)
@given(
    one=splits,
    other=splits,
    rule=RULES,
    warmup=st.sampled_from([0, "10%", "500 samples", "7 updates", "100%"]),
    decay=st.sampled_from(["none", "linear", "cosine"]),
    final=st.sampled_from(["0%", "10%", "100%"]),
    budget=st.integers(500, 3000),
)
def test_every_rate_of_a_run_is_the_same_however_its_batch_is_split(
    one, other, rule, warmup, decay, final, budget
) -> None:
    shape = {"base": 0.1, "rule": rule, "warmup": warmup, "decay": decay, "final": final, "budget": budget}
    first, second = (trial(workers=w, micro=m, accumulation=a, **shape) for w, m, a in (one, other))
    assert rates(first) == rates(second)
    assert max(rates(first)) <= first.lr.peak


@pytest.mark.parametrize(
    ("rule", "peak"), [("linear", 8e-3), ("sqrt", 2.828427e-3), ("sde", 2.828427e-3), ("none", 1e-3)]
)
def test_the_rule_is_a_choice_of_the_search_and_linear_with_adam_is_told(rule: str, peak: float) -> None:
    # xingyizhou/CenterNet#476, NVIDIA/apex#407: linear scaling was hard-wired, and for Adam square root helped
    spec = spec_from_dict(
        {
            "task": {"name": "digits"},
            "batch": {"global": 2048, "reference": 256},
            "optimizer": {"name": "AdamW"},
            "lr": {"base": 1e-3},
            "budget": {"samples": 40_960, "eval_every": 4096},
            "space": {"lr.rule": [rule]},
        }
    )
    assert resolve_trial(spec, {"lr.rule": rule}).lr.peak == pytest.approx(peak, rel=1e-6)
    facts = Facts(train_samples=10**6, val_samples=100, metric_modes={"loss": "min"})
    told = any("adaptive optimizer" in warning for warning in check_spec(spec, facts))
    assert told == (rule == "linear")
