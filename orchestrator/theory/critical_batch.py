"""The critical batch size from runs at several batches: an estimate with its interval, or the reason why there is none.

The likelihood lives in `hyperbola`, what a run needs to reach a target in `target_crossing`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from orchestrator.theory._checks import positive
from orchestrator.theory.hyperbola import Data, Profile, Region, log_growth
from orchestrator.theory.lack_of_fit import Scatter, scatter_of
from orchestrator.theory.observation import Observation, batches_of, log_data
from orchestrator.theory.outliers import gross_outliers
from orchestrator.theory.overhead import overhead_batch
from orchestrator.theory.unequal_noise import noise_of, unequal, with_own_noise

MIN_BATCHES = 3
MAX_RATIO = 10.0
"""An interval that spans more than this factor answers nothing."""
MISFIT_P = 0.01
ROUGH = 0.1
"""Root mean square log residual above which a curve does not fit."""

CRITICAL_BATCH = "critical batch = Emin / Smin, the batch at which samples-to-target is twice Emin (McCandlish 2018)"
CBS20 = (
    "cbs20 = 0.2 x critical batch, at which samples-to-target is 1.2 Emin (the 20 % of Zhang 2024, over a vanishing "
    "batch instead of 256)"
)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with its interval; None where a bound, or the value, is not determined."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class CriticalBatch:
    """The critical batch with its interval, or why it is not determined.

    Attributes:
        verdict: ``determined``, or ``met at start``, ``unreachable``, ``too few batches``, ``perfect scaling`` (no
            batch is large enough), ``beyond critical`` (no batch is small enough), ``too noisy``, ``no hyperbola``.
        reason: empty, or ``not determined: ...``, with what to do.
        critical_batch: Emin / Smin in samples, or None.
        low: lower end of its interval, samples; without a value the bound that the data still set, or None.
        high: upper end, alike.
        cbs20: the batch of 20 % overhead over Emin, 0.2 times as large, with its interval.
        emin: samples to the target at vanishing batch; determined also where every batch scales perfectly.
        smin: updates to the target at unlimited batch.
        rms_log_residual: root mean square distance of the batches' mean log samples from the curve.
        seed_sd_log: standard deviation of ln(samples) between runs of a batch; None without two at any.
        lack_of_fit: probability of residuals as large if the hyperbola holds and seeds alone scatter; None if unknown.
        misfit_scale: factor by which the interval was widened because the hyperbola does not hold; 1 if it does.
        batches: batches with a run that reached the target.
        runs: observations that were used.
        censored: those among them that ended before the target.
        set_aside: gross outliers that were not used.
        warnings: what weakens the estimate, in sentences.
        confidence: of all intervals.
    """

    verdict: str
    reason: str = ""
    critical_batch: float | None = None
    low: float | None = None
    high: float | None = None
    cbs20: Estimate = Estimate()
    emin: Estimate = Estimate()
    smin: Estimate = Estimate()
    rms_log_residual: float | None = None
    seed_sd_log: float | None = None
    lack_of_fit: float | None = None
    misfit_scale: float = 1.0
    batches: int
    runs: int
    censored: int
    set_aside: tuple[Observation, ...] = ()
    warnings: tuple[str, ...] = ()
    confidence: float
    unit: str = "samples"
    definitions: tuple[str, ...] = (CRITICAL_BATCH, CBS20)
    curve: Region | None = field(default=None, repr=False, compare=False)

    def predict(self, global_batch: float) -> Estimate:
        """Samples to the target at a batch > 0, with the interval of the curve (single runs scatter around it).

        Inside the range of tried batches it holds even where the critical batch is not determined. Empty where nothing
        was fitted.
        """
        positive("global_batch", global_batch)
        if self.curve is None:
            return Estimate()
        value, low, high = self.curve.range_of(lambda c: log_growth(c, global_batch))
        return Estimate(value=math.exp(value), low=math.exp(low), high=math.exp(high))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict; every number in it is finite. Without `curve`."""
        found = dataclasses.asdict(dataclasses.replace(self, curve=None))
        del found["curve"]
        return found


def fit(observations: Iterable[Observation], *, confidence: float = 0.95, sd_log: float | None = None) -> CriticalBatch:
    r"""Fit samples-to-target against the batch, and say what it tells.

    .. math::
        E(B) = E_{min} (1 + B / B_{crit}), \qquad B_{crit} = E_{min} / S_{min}

    or (S/Smin - 1)(E/Emin - 1) = 1 with S = E/B, in log space, with normal noise. Every run weighs the same; where
    seeds scatter more at some batches than at others, the error is made of each batch's own (`unequal_noise`). The
    interval is of the profile likelihood with the quantile of F (`hyperbola.Profile`), which covers as often as it says
    also with 3 seeds, where a percentile bootstrap does not. Right-censored runs enter with the probability of needing
    more than their budget. Gross outliers are set aside (`outliers`).

    Where residuals are larger than the scatter between seeds explains (p < `MISFIT_P`), the hyperbola does not hold and
    further seeds tell nothing: the batches' means (medians, where runs were set aside) are then fitted with equal
    weights, and the interval is widened by their misfit, as is done for inconsistent measurements (scale factor of the
    Particle Data Group), beyond `MAX_RATIO` if need be; a warning says so.

    It is "not determined" where a target is met before training or never; where fewer than `MIN_BATCHES` batches
    reached it; and where the runs are compatible with samples independent of the batch, or proportional to it, or leave
    an interval of more than a factor `MAX_RATIO`.

    Source: McCandlish et al. 2018 (arXiv:1812.06162), section 2.2 and appendix D, for the hyperbola; Zhang et al. 2024
    (arXiv:2410.21676) for the 20 % definition. Assumed: the learning rate is as good at every batch.

    Args:
        observations: runs, several at each batch for the scatter of seeds, such as those of `target_crossing`; or one
            estimate a batch with `se_log`, which three seeds tell too badly for the interval to be exact.
        confidence: of the intervals, in (0, 1).
        sd_log: standard deviation of ln(samples) between runs, if it is known from elsewhere.

    Raises:
        ValueError: for a confidence or `sd_log` out of range, or standard errors of some observations only.

    >>> planted = [Observation(global_batch=b, samples=1000 * (1 + b / 64) * f) for b in (8, 32, 128, 512)
    ...            for f in (0.95, 1.05)]
    >>> found = fit(planted)
    >>> found.verdict, round(found.critical_batch, 6), found.low < 64 < found.high
    ('determined', 64.0, True)
    >>> fit(planted[:4]).reason
    'not determined: the target was reached at 2 batches, at least 3 are needed. Add batches'
    """
    runs = tuple(observations)
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence = {confidence!r}: must be above 0 and below 1, such as 0.95")
    if sd_log is not None:
        positive("sd_log", sd_log)
    reached = [run for run in runs if not run.censored]
    with_se = sum(run.se_log is not None for run in reached)
    if with_se not in (0, len(reached)) or (with_se and sd_log is not None):
        raise ValueError(
            f"se_log is given for {with_se} of {len(reached)} reached observations, sd_log = {sd_log!r}: "
            "give se_log for all of them, or for none, and sd_log only without it"
        )
    early = _without_fit(runs, confidence)
    if early is not None:
        return early
    far = _outliers(runs) if not with_se and sd_log is None else []
    kept = [run for i, run in enumerate(runs) if i not in far]
    early = _without_fit(kept, confidence)
    if early is not None:
        return dataclasses.replace(early, set_aside=tuple(runs[i] for i in far))
    return _fitted(kept, [runs[i] for i in far], confidence, sd_log)


def _without_fit(runs: Sequence[Observation], confidence: float) -> CriticalBatch | None:
    """The verdict where there is nothing to fit."""
    batches = {run.global_batch for run in runs if not run.censored}
    met = sorted({run.global_batch for run in runs if run.samples == 0})
    tried = len({run.global_batch for run in runs})
    verdict = reason = ""
    if met:
        verdict = "met at start"
        reason = f"the target is met at sample 0 (batch {', '.join(map(str, met))}). Set a harder target"
    elif not batches:
        verdict = "unreachable"
        reason = (
            f"no run reached the target ({len(runs)} runs at {tried} batches). Give more samples, or an easier target"
        )
    elif len(batches) < MIN_BATCHES:
        verdict = "too few batches"
        reason = (
            f"the target was reached at {len(batches)} batch{'es' * (len(batches) > 1)}, at least {MIN_BATCHES} are "
            f"needed. {'Add batches' if tried == len(batches) else 'Give more samples, or an easier target'}"
        )
    if not verdict:
        return None
    return CriticalBatch(
        verdict=verdict,
        reason=f"not determined: {reason}",
        batches=len(batches),
        runs=len(runs),
        censored=sum(run.censored for run in runs),
        confidence=confidence,
    )


def _outliers(runs: Sequence[Observation]) -> list[int]:
    log_samples = np.log([run.samples for run in runs])
    return gross_outliers(log_samples, batches_of(runs), np.array([run.censored for run in runs]))


def _fitted(
    runs: Sequence[Observation], aside: Sequence[Observation], confidence: float, sd_log: float | None
) -> CriticalBatch:
    data, dof = log_data(runs, sd_log)
    profile = Profile(data=data)
    noise = None if sd_log is not None else noise_of(runs)
    if noise is not None and unequal(noise):
        own, own_dof, noise = with_own_noise(data, noise, profile.log_bcrit)
        # What arrived of a censored batch says too little of its scatter to narrow an interval.
        if not np.any(data.censored) or _reach(own, own_dof) > _reach(data, dof, float(profile.best.variance[0])):
            data, dof, profile = own, own_dof, Profile(data=own)
        else:
            noise = None
    else:
        noise = None
    scatter = scatter_of(profile, dof, robust=bool(aside), noise=noise)
    limit = _limit(data, dof, confidence)
    low, high = profile.interval(limit)
    verdict, reason = _judged(low, high, data, confidence)
    misfit = scatter.p_value is not None and scatter.p_value < MISFIT_P
    refitted = misfit and not verdict
    if refitted:
        profile = Profile(data=scatter.centres)
        limit = _limit(scatter.centres, dof, confidence, scaled=True)
        low, high = profile.interval(limit)
        if low is None or high is None:
            verdict, reason = "no hyperbola", "the hyperbola misses the batches too far. Check the learning rates"
    region = profile.region(limit)
    bounds = Estimate(value=None if verdict else math.exp(profile.log_bcrit), low=_exp(low), high=_exp(high))
    return CriticalBatch(
        verdict=verdict or "determined",
        reason=f"not determined: {reason}" if verdict else "",
        critical_batch=bounds.value,
        low=bounds.low,
        high=bounds.high,
        cbs20=Estimate(value=_fifth(bounds.value), low=_fifth(bounds.low), high=_fifth(bounds.high)),
        emin=_estimate(region.range_of(np.zeros_like), profile.log_bcrit > -math.inf, low is not None),
        smin=_estimate(region.range_of(np.negative), profile.log_bcrit < math.inf, high is not None),
        rms_log_residual=math.sqrt(profile.best.variance[0]) if refitted else scatter.rms_log_residual,
        seed_sd_log=scatter.seed_sd_log,
        lack_of_fit=scatter.p_value,
        misfit_scale=scatter.scale if refitted else 1.0,
        batches=len({run.global_batch for run in runs if not run.censored}),
        runs=len(runs),
        censored=sum(run.censored for run in runs),
        set_aside=tuple(aside),
        warnings=tuple(_warnings(runs, aside, bounds, scatter, misfit)),
        confidence=confidence,
        curve=region,
    )


def _limit(data: Data, dof: float | None, confidence: float, *, scaled: bool = False) -> float:
    """The deviance that an interval of one parameter ends at; `scaled` takes the noise from the residuals as exact."""
    normal = float(stats.chi2.ppf(confidence, 1))
    if data.known:
        return normal if dof is None else float(stats.f.ppf(confidence, 1, dof))
    n = int(np.sum(~data.censored))
    return n * math.log1p((normal if scaled else float(stats.f.ppf(confidence, 1, n - 2))) / (n - 2))


def _reach(data: Data, dof: float | None, variance: float = 1.0) -> float:
    """How far an interval reaches in the mean square of one run's ln(samples), to first order."""
    n = int(np.sum(~data.censored))
    freedom = n - 2 if not data.known else dof
    scale = variance * (1.0 if data.known else n / (n - 2))
    quantile = stats.chi2.ppf(0.95, 1) if freedom is None else stats.f.ppf(0.95, 1, freedom)
    return float(np.min(data.sd)) ** 2 * scale * float(quantile)


def _judged(low: float | None, high: float | None, data: Data, confidence: float) -> tuple[str, str]:
    """Verdict and reason where an interval in log batch is too wide; empty where it is not."""
    least, most = _text(float(np.min(data.batch))), _text(float(np.max(data.batch)))
    sure = f"at {100 * confidence:g} %"
    if low is None and high is None:
        return "too noisy", (
            f"the runs fit samples-to-target independent of the batch and proportional to it alike, from {least} to "
            f"{most}. Add seeds, or batches further apart"
        )
    if high is None:
        return "perfect scaling", (
            f"samples-to-target does not clearly grow from batch {least} to {most}: the critical batch is above "
            f"{_text(math.exp(low or 0.0))} {sure}. Add larger batches, or seeds"
        )
    if low is None:
        return "beyond critical", (
            f"samples-to-target grows in proportion from batch {least} to {most}: the critical batch is below "
            f"{_text(math.exp(high))} {sure}. Add smaller batches, or seeds"
        )
    if high - low > math.log(MAX_RATIO):
        return "too noisy", (
            f"the critical batch lies anywhere from {_text(math.exp(low))} to {_text(math.exp(high))} {sure}, more "
            f"than a factor {MAX_RATIO:g}. Add seeds, or batches further apart"
        )
    return "", ""


def _warnings(
    runs: Sequence[Observation], aside: Sequence[Observation], bounds: Estimate, scatter: Scatter, misfit: bool
) -> Iterator[str]:
    if aside:
        named = ", ".join(f"{_text(run.samples)} samples at batch {run.global_batch}" for run in aside)
        yield f"{len(aside)} gross outlier{'s' * (len(aside) > 1)} set aside: {named}"
    percent = 100.0 * scatter.rms_log_residual
    if misfit:
        grade = "does not fit" if scatter.rms_log_residual > ROUGH else "fits only roughly"
        yield (
            f"the hyperbola {grade}: it misses the batches by {percent:.2g} % (rms), more than seeds explain "
            f"(p = {scatter.p_value:.1g}){'; the interval allows for that' if bounds.value is not None else ''}"
        )
    elif scatter.p_value is None and scatter.rms_log_residual > ROUGH:
        yield f"the curve misses the batches by {percent:.2g} % (rms); single runs cannot tell misfit from seed noise"
    batches = [run.global_batch for run in runs if not run.censored]
    if bounds.value is not None and not min(batches) <= bounds.value <= max(batches):
        side, end = (
            ("above the largest", max(batches)) if bounds.value > max(batches) else ("below the least", min(batches))
        )
        yield f"extrapolated: the critical batch lies {side} batch that reached the target, {end}"
    lost = sum(run.censored for run in runs)
    if 3 * lost > len(runs):
        yield f"{lost} of {len(runs)} runs ended before the target; the interval then relies on normal log samples"


def _estimate(found: tuple[float, float, float], known: bool, bounded: bool) -> Estimate:
    value, low, high = found
    # Without a bound of the critical batch, Emin and Smin may be as small as one likes.
    return Estimate(value=_exp(value) if known else None, low=_exp(low) if bounded else None, high=_exp(high))


def _exp(value: float | None) -> float | None:
    return None if value is None or value > 700.0 else math.exp(value)


def _fifth(value: float | None) -> float | None:
    return None if value is None else overhead_batch(value)


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
