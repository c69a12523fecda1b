"""How the peak learning rate, and with `sde` the optimizer's own constants, follow the global batch.

A rule is a ratio between two batches. It says nothing about the base learning rate, tuned at the reference batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from orchestrator.theory._checks import positive

RULES: Mapping[str, str] = {
    "none": "the peak stays at the base",
    "sqrt": "peak ~ B^0.5",
    "linear": "peak ~ B",
    "power": "peak ~ B^exponent",
    "noise": "peak ~ 1 / (1 + noise_scale / B), McCandlish 2018",
    "sde": "peak ~ B^0.5 with Adam's betas and eps scaled too, Malladi 2022",
}

ADAM_DEFAULTS: Mapping[str, Any] = {"betas": [0.9, 0.999], "eps": 1e-8}
"""What Adam, AdamW, NAdam and RAdam of torch.optim use where an option is not given."""

_MAX_LOG_FACTOR = 600.0  # keeps the factor inside of float64
_LIMITS = {"linear": 8, "power": 8, "none": 64, "sqrt": 64, "sde": 64, "noise": 64}
_WHY = {
    "linear": "it assumes that gradient noise dominates, which ends near the critical batch",
    "power": "an exponent measured over a short range need not hold over a long one",
    "none": "the best learning rate seldom stays put over such a range",
    "sqrt": "it assumes that gradient noise dominates, which ends near the critical batch",
    "sde": "it assumes that gradient noise dominates, which ends near the critical batch",
    "noise": "the noise scale itself moves during training",
}


def scale(
    rule: str,
    from_batch: float,
    to_batch: float,
    *,
    exponent: float | None = None,
    noise_scale: float | None = None,
) -> float:
    r"""Factor on the learning rate when the global batch goes from one size to another.

    ========== ============================================ ======================================================
    rule       factor, with :math:`\kappa = B' / B`         source
    ========== ============================================ ======================================================
    ``none``   1
    ``sqrt``   :math:`\kappa^{1/2}`                         Krizhevsky 2014; Hoffer et al. 2017
    ``linear`` :math:`\kappa`                               Goyal et al. 2017
    ``power``  :math:`\kappa^{a}`                           a measured, such as 2/3
    ``noise``  :math:`(1 + B_n / B) / (1 + B_n / B')`       McCandlish et al. 2018 (arXiv:1812.06162), section 2.2:
                                                            :math:`\epsilon(B) = \epsilon_{max} / (1 + B_n / B)`
    ``sde``    :math:`\kappa^{1/2}`                         Malladi et al. 2022 (arXiv:2205.10287), for RMSprop, Adam
    ========== ============================================ ======================================================

    Every rule composes: ``scale(a, b) * scale(b, c) == scale(a, c)``. ``noise`` is ``linear`` far below
    :math:`B_n` and ``none`` far above it. It was derived for SGD on a locally quadratic loss; :math:`B_n` there is
    weighted by curvature, and using the simple noise scale in its place is an assumption.

    Args:
        rule: a key of `RULES`.
        from_batch: B, samples, > 0.
        to_batch: B', samples, > 0.
        exponent: a, of ``power`` only; any finite number. Other rules ignore it.
        noise_scale: :math:`B_n` in samples, > 0, of ``noise`` only. Other rules ignore it.

    Raises:
        ValueError: for an unknown rule, a missing parameter, or a value out of range.

    >>> round(1e-3 * scale("sqrt", 256, 2048), 6)
    0.002828
    >>> scale("linear", 256, 2048), scale("noise", 100, 300, noise_scale=100)
    (8.0, 1.5)
    """
    kappa = positive("to_batch", to_batch) / positive("from_batch", from_batch)
    match rule:
        case "none":
            return 1.0
        case "sqrt" | "sde":
            return math.sqrt(kappa)
        case "linear":
            return kappa
        case "power":
            if exponent is None or isinstance(exponent, bool) or not math.isfinite(exponent):
                raise ValueError(f"exponent = {exponent!r}: rule 'power' needs a finite exponent, such as 0.5")
            if abs(exponent * math.log(kappa)) > _MAX_LOG_FACTOR:
                raise ValueError(f"exponent = {exponent!r}: the factor at x{kappa:g} is beyond any learning rate")
            return float(kappa**exponent)
        case "noise":
            if noise_scale is None:
                raise ValueError("noise_scale = None: rule 'noise' needs a noise scale in samples. Measure it first")
            noise = positive("noise_scale", noise_scale)
            return (1.0 + noise / from_batch) / (1.0 + noise / to_batch)
    raise ValueError(f"rule = {rule!r}: must be one of {', '.join(RULES)}")


def peak_lr(
    base: float,
    rule: str,
    reference_batch: int,
    global_batch: int,
    *,
    exponent: float | None = None,
    noise_scale: float | None = None,
) -> float:
    """The peak learning rate at `global_batch`, from `base` stated at `reference_batch`: ``base * scale(...)``.

    Args:
        base: learning rate at `reference_batch`, > 0.
        rule: a key of `RULES`; its parameters are those of `scale`.
        reference_batch: samples. Global ones: micro batch x accumulation x world size.
        global_batch: samples, counted in the same way.
        exponent: of ``power``.
        noise_scale: of ``noise``, in samples.

    Raises:
        ValueError: as `scale`, or for a base that is not above 0.

    >>> peak_lr(0.02, "linear", 16, 2), peak_lr(0.02, "linear", 16, 32)
    (0.0025, 0.04)
    """
    factor = scale(rule, reference_batch, global_batch, exponent=exponent, noise_scale=noise_scale)
    return positive("base", base) * factor


def scaled_optimizer_options(rule: str, options: Mapping[str, Any], kappa: float) -> dict[str, Any]:
    r"""The optimizer's options at a batch :math:`\kappa` times the reference batch.

    Only ``sde`` changes any (Malladi et al. 2022, the square root scaling rule; the learning rate's
    :math:`\sqrt\kappa` is in `scale`):

    .. math::
        \beta_i' = 1 - \kappa (1 - \beta_i), \qquad \epsilon' = \epsilon / \sqrt\kappa

    with :math:`\epsilon` added to the root of the second moment, as torch does. For RMSprop, torch's ``alpha`` is
    the :math:`\beta`. Valid while gradient noise dominates the second moment, and while every
    :math:`\kappa (1 - \beta_i) < 1`: beta1 = 0.9 allows kappa < 10. The rule knows no weight decay, which is left
    as it is.

    Args:
        rule: a key of `RULES`.
        options: keyword arguments of the optimizer at the reference batch. For ``sde`` they hold ``eps`` and either
            ``betas`` or ``alpha``, spelled out (see `ADAM_DEFAULTS`).
        kappa: global batch / reference batch, > 0.

    Returns:
        A new dict; ``betas`` becomes a list, so that it survives JSON unchanged.

    Raises:
        ValueError: for an unknown rule; for ``sde`` also where ``eps`` and ``betas`` are missing, as with SGD, or a
            beta would fall to 0 or below.

    >>> scaled = scaled_optimizer_options("sde", {"betas": [0.9, 0.999], "eps": 1e-8}, 4)
    >>> [round(beta, 6) for beta in scaled["betas"]], scaled["eps"]
    ([0.6, 0.996], 5e-09)
    """
    if rule not in RULES:
        raise ValueError(f"rule = {rule!r}: must be one of {', '.join(RULES)}")
    positive("kappa", kappa)
    if rule != "sde":
        return dict(options)
    if "eps" not in options or not ("betas" in options or "alpha" in options):
        raise ValueError(
            f"options = {dict(options)!r}: rule 'sde' needs an adaptive optimizer with betas (or alpha) and eps given. "
            "For Adam write them out; for SGD use 'linear' or 'sqrt'"
        )
    scaled = {**options, "eps": options["eps"] / math.sqrt(kappa)}
    if "betas" in options:
        scaled["betas"] = [_scaled_beta(f"beta{i}", beta, kappa) for i, beta in enumerate(options["betas"], start=1)]
    else:
        scaled["alpha"] = _scaled_beta("alpha", options["alpha"], kappa)
    return scaled


def _scaled_beta(name: str, beta: float, kappa: float) -> float:
    if not 0.0 <= beta < 1.0:
        raise ValueError(f"{name} = {beta!r}: must be at least 0 and below 1")
    if kappa * (1.0 - beta) >= 1.0:
        raise ValueError(
            f"{name} = {beta!r} at {kappa:g} times the reference batch: rule 'sde' needs kappa * (1 - {name}) < 1. "
            f"Stay below {1.0 / (1.0 - beta):.4g} times the reference batch, raise {name}, or use 'sqrt'"
        )
    return 1.0 - kappa * (1.0 - beta)


def stretch_warning(rule: str, reference_batch: int, global_batch: int, adaptive: bool) -> list[str]:
    """What to doubt about a rule taken from one batch to another, as sentences; empty where nothing speaks against it.

    The limits are rules of thumb. ``linear`` over x2 to x4 is routine and x8 still common; Goyal et al. 2017 needed
    a long warmup for x32 and lost accuracy beyond; Shallue et al. 2018 (arXiv:1811.03600) found no rule that held
    everywhere. At the reference batch itself no rule has an effect, so nothing is said.

    Args:
        rule: a key of `RULES`.
        reference_batch: samples, > 0.
        global_batch: samples, > 0; larger and smaller are treated alike.
        adaptive: whether the optimizer divides by a running gradient size (Adam and its kin, RMSprop).

    Raises:
        ValueError: for an unknown rule, or a batch that is not above 0.

    >>> stretch_warning("linear", 64, 256, adaptive=False)
    []
    >>> len(stretch_warning("linear", 64, 2048, adaptive=True))
    2
    """
    if rule not in RULES:
        raise ValueError(f"rule = {rule!r}: must be one of {', '.join(RULES)}")
    up = positive("global_batch", global_batch) / positive("reference_batch", reference_batch)
    if up == 1.0:
        return []
    found = []
    stretch = max(up, 1.0 / up)
    if stretch > _LIMITS[rule]:
        found.append(
            f"rule {rule!r} is stretched x{stretch:.3g} (batch {reference_batch} to {global_batch}), "
            f"over x{_LIMITS[rule]}: {_WHY[rule]}. Tune the base learning rate nearer to that batch"
        )
    if rule == "linear" and adaptive:
        found.append(
            "rule 'linear' with an adaptive optimizer, whose steps do not grow with the gradient: "
            "'sqrt' or 'sde' is what theory and most reports support (Malladi 2022)"
        )
    if rule == "sde" and not adaptive:
        found.append("rule 'sde' is derived for RMSprop and Adam only: for SGD use 'linear' or 'sqrt'")
    return found
