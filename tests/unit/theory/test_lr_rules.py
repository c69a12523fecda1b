"""Learning-rate rules: they compose, meet published and hand-computed figures, and refuse what they cannot do."""

import inspect
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.theory.lr_rules import (
    ADAM_DEFAULTS,
    RULES,
    peak_lr,
    scale,
    scaled_optimizer_options,
    stretch_warning,
)

batches = st.integers(1, 2**24)
parameters = {"exponent": 2 / 3, "noise_scale": 400.0}


@pytest.mark.parametrize("rule", RULES)
@given(a=batches, b=batches, c=batches, exponent=st.floats(-2, 2), noise_scale=st.floats(1e-2, 1e8))
def test_rules_compose(rule: str, a: int, b: int, c: int, exponent: float, noise_scale: float) -> None:
    kw = {"exponent": exponent, "noise_scale": noise_scale}
    assert scale(rule, a, b, **kw) * scale(rule, b, c, **kw) == pytest.approx(scale(rule, a, c, **kw), rel=1e-12)
    assert scale(rule, a, a, **kw) == 1.0


def test_adam_user_sees_each_rule_at_eight_times_the_batch() -> None:
    peaks = {rule: peak_lr(1e-3, rule, 256, 2048) for rule in ("linear", "sqrt", "sde", "none")}
    assert peaks == pytest.approx({"linear": 8e-3, "sqrt": 2.828427e-3, "sde": 2.828427e-3, "none": 1e-3}, rel=1e-6)


@pytest.mark.parametrize(("micro", "world", "peak"), [(8, 2, 0.02), (1, 16, 0.02), (1, 2, 0.0025), (8, 4, 0.04)])
def test_the_batch_of_a_rule_is_the_global_one(micro: int, world: int, peak: float) -> None:
    assert peak_lr(0.02, "linear", 16, micro * world) == pytest.approx(peak, rel=1e-12)


def test_exponent_two_thirds_takes_eight_to_sixty_four_with_a_factor_of_four() -> None:
    assert peak_lr(0.1, "power", 8, 64, exponent=2 / 3) == pytest.approx(0.4, rel=1e-12)


@given(a=batches, b=batches)
def test_noise_rule_is_linear_far_below_the_noise_scale_and_none_far_above(a: int, b: int) -> None:
    assert scale("noise", a, b, noise_scale=1e15) == pytest.approx(b / a, rel=1e-6)
    assert scale("noise", a, b, noise_scale=1e-9) == pytest.approx(1.0, rel=1e-6)


def test_noise_rule_halves_the_largest_lr_at_the_noise_scale() -> None:
    assert scale("noise", 400, 400 * 10**12, noise_scale=400) == pytest.approx(2.0, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("square", 1, 2, {}), "rule = 'square': must be one of none, sqrt"),
        (("power", 1, 2, {}), "exponent = None"),
        (("power", 1, 2, {"exponent": math.nan}), "exponent = nan"),
        (("power", 1, 2**20, {"exponent": 1e6}), "exponent = 1000000.0"),
        (("noise", 1, 2, {}), "noise_scale = None"),
        (("noise", 1, 2, {"noise_scale": 0.0}), "noise_scale = 0.0"),
        (("sqrt", 0, 2, {}), "from_batch = 0"),
        (("sqrt", 1, -2, {}), "to_batch = -2"),
        (("sqrt", True, 2, {}), "from_batch = True"),
    ],
)
def test_scale_refuses(arguments: Any, message: str) -> None:
    rule, a, b, kw = arguments
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        scale(rule, a, b, **kw)


@pytest.mark.parametrize("base", [0.0, -0.1, math.inf, math.nan])
def test_peak_needs_a_positive_base(base: float) -> None:
    with pytest.raises(ValueError, match="base = "):
        peak_lr(base, "linear", 64, 128)


def test_sde_scales_adam_as_malladi_2022() -> None:
    options = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}
    found = scaled_optimizer_options("sde", options, 4.0)
    assert found["betas"] == pytest.approx([0.6, 0.996], rel=1e-12)
    assert found["eps"] == pytest.approx(5e-9, rel=1e-12)
    assert found["weight_decay"] == 0.1
    assert options == {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}


@given(k1=st.floats(0.05, 3), k2=st.floats(0.05, 3))
def test_sde_options_compose(k1: float, k2: float) -> None:
    options = dict(ADAM_DEFAULTS)
    twice = scaled_optimizer_options("sde", scaled_optimizer_options("sde", options, k1), k2)
    once = scaled_optimizer_options("sde", options, k1 * k2)
    assert twice["betas"] == pytest.approx(once["betas"], abs=1e-12)
    assert twice["eps"] == pytest.approx(once["eps"], rel=1e-12)


def test_sde_scales_the_alpha_of_rmsprop() -> None:
    found = scaled_optimizer_options("sde", {"alpha": 0.99, "eps": 1e-8}, 9.0)
    assert found == pytest.approx({"alpha": 0.91, "eps": 1e-8 / 3})


@pytest.mark.parametrize("rule", [r for r in RULES if r != "sde"])
def test_other_rules_leave_the_options_alone(rule: str) -> None:
    assert scaled_optimizer_options(rule, {"momentum": 0.9}, 16) == {"momentum": 0.9}


def test_sde_refuses_a_beta_that_falls_to_zero() -> None:
    adam = dict(ADAM_DEFAULTS)
    assert scaled_optimizer_options("sde", adam, 9.9)["betas"][0] == pytest.approx(0.01)
    with pytest.raises(ValueError, match=r"beta1 = 0.9 .* needs kappa \* \(1 - beta1\) < 1. Stay below 10 times"):
        scaled_optimizer_options("sde", adam, 10.1)


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"betas": [0.9, 0.999]}, {"eps": 1e-8}])
def test_sde_refuses_an_optimizer_without_betas_and_eps(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="for SGD use 'linear' or 'sqrt'"):
        scaled_optimizer_options("sde", options, 2)


@pytest.mark.parametrize(("kappa", "beta"), [(0, 0.9), (-1, 0.9), (math.nan, 0.9), (2, 1.0), (2, -0.1)])
def test_sde_refuses_figures_out_of_range(kappa: float, beta: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        scaled_optimizer_options("sde", {"betas": [beta, 0.999], "eps": 1e-8}, kappa)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam"])
def test_adam_defaults_are_those_of_torch(name: str) -> None:
    optim = pytest.importorskip("torch.optim")
    defaults = inspect.signature(getattr(optim, name)).parameters
    assert list(defaults["betas"].default) == ADAM_DEFAULTS["betas"]
    assert defaults["eps"].default == ADAM_DEFAULTS["eps"]


@pytest.mark.parametrize(
    ("rule", "to_batch", "adaptive", "words"),
    [
        ("linear", 64, True, []),
        ("linear", 256, False, []),
        ("linear", 512, False, []),
        ("linear", 2048, False, ["x32"]),
        ("linear", 2, False, ["x32"]),
        ("linear", 512, True, ["adaptive"]),
        ("linear", 2048, True, ["x32", "adaptive"]),
        ("sqrt", 4096, True, []),
        ("sqrt", 8192, True, ["x128"]),
        ("none", 8192, False, ["x128"]),
        ("power", 1024, False, ["x16"]),
        ("noise", 8192, False, ["x128"]),
        ("sde", 256, True, []),
        ("sde", 256, False, ["RMSprop and Adam only"]),
    ],
)
def test_stretch_warnings(rule: str, to_batch: int, adaptive: bool, words: list[str]) -> None:
    found = stretch_warning(rule, 64, to_batch, adaptive)
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))


def test_stretch_warning_refuses_an_unknown_rule() -> None:
    with pytest.raises(ValueError, match="rule = 'cubic'"):
        stretch_warning("cubic", 64, 128, adaptive=False)
