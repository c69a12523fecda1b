"""Memory is free: should the batch be doubled? Throughput gained against samples lost, and the new learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.theory._checks import whole
from orchestrator.theory.critical_batch import Estimate
from orchestrator.theory.recommendation import quotient


@dataclass(frozen=True, kw_only=True)
class Doubling:
    """What doubling the global batch does to the time to the target.

    Attributes:
        throughput: factor on samples a second.
        samples: factor on samples to the target, from 1 to 2.
        time: factor on the time to the target.
        verdict: ``yes`` where the time falls for sure, ``no`` where it rises for sure, else ``not told apart``.
        learning_rate: factor on the peak learning rate.
        answer: in a sentence.
    """

    throughput: Estimate
    samples: Estimate
    time: Estimate
    verdict: str
    learning_rate: Estimate
    answer: str


def samples_growth(before: int, after: int, critical: Estimate) -> Estimate:
    """Factor on samples to the target from one global batch to a larger one, with its interval.

    (Bcrit + after) / (Bcrit + before): 1 far below the critical batch and after / before far above it. Ends of the
    critical batch that are None are open.

    >>> samples_growth(100, 200, Estimate(value=300.0, low=200.0))
    Estimate(value=1.25, low=1.0, high=1.3333333333333333)
    """
    if not 0 < before < after:
        raise ValueError(f"before = {before!r}, after = {after!r}: the second batch must be the larger")

    def factor(batch: float) -> float:
        return (batch + after) / (batch + before)

    return Estimate(
        value=None if critical.value is None else factor(critical.value),
        low=1.0 if critical.high is None else factor(critical.high),
        high=after / before if critical.low is None else factor(critical.low),
    )


def should_double(global_batch: int, critical_batch: Estimate, throughput: Estimate, lr_exponent: Estimate) -> Doubling:
    r"""Whether twice the global batch reaches the target sooner on the same devices.

    .. math::
        \frac{t(2B)}{t(B)} = \frac{1 + 2B / B_{crit}}{1 + B / B_{crit}} \cdot \frac{r(B)}{r(2B)}

    Args:
        global_batch: B, samples, as it is.
        critical_batch: :math:`B_{crit}`, samples; an end that is None is open.
        throughput: r(2B) / r(B), with its interval, such as `StepTimeModel.speedup`.
        lr_exponent: of the rule that the peak learning rate follows, 0.5 for ``sqrt``; a measured one has an interval.

    >>> exact = Estimate(value=1.6, low=1.6, high=1.6)
    >>> found = should_double(64, Estimate(value=192.0, low=150.0, high=250.0), exact, Estimate(value=0.5))
    >>> found.verdict, round(found.samples.value, 6), round(found.time.value, 6)
    ('yes', 1.25, 0.78125)
    >>> print(*found.answer.split(", "), sep="\n")
    yes: 60 % more samples a second
    25 % more samples to the target
    22 % less time (19 to 25 % less). Multiply the peak learning rate by 1.41
    """
    whole("global_batch", global_batch)
    samples = samples_growth(global_batch, 2 * global_batch, critical_batch)
    time = quotient(samples, throughput)
    rate = Estimate(**{name: None if e is None else 2.0**e for name, e in _ends(lr_exponent)})
    if time.value is None or samples.value is None or throughput.value is None:
        missing = "the critical batch" if samples.value is None else "the throughput at twice the batch"
        verdict = "not told apart"
        answer = f"not determined: {missing} is not known"
    else:
        verdict = _verdict(time)
        answer = (
            f"{verdict}: {_share(throughput.value)} samples a second, {_share(samples.value)} samples to the target, "
            f"{_share(time.value, 'time')}{_range(time)}"
        )
        if rate.value is not None and verdict != "no":
            answer += f". Multiply the peak learning rate by {rate.value:.3g}"
    return Doubling(
        throughput=throughput, samples=samples, time=time, verdict=verdict, learning_rate=rate, answer=answer
    )


def _verdict(time: Estimate) -> str:
    if time.high is not None and time.high < 1.0:
        return "yes"
    if time.low is not None and time.low > 1.0:
        return "no"
    return "not told apart"


def _ends(estimate: Estimate) -> list[tuple[str, float | None]]:
    return [("value", estimate.value), ("low", estimate.low), ("high", estimate.high)]


def _share(factor: float, what: str = "") -> str:
    return f"{abs(factor - 1.0):.0%} {'more' if factor >= 1.0 else 'less'}{what and ' '}{what}".replace("%", " %")


def _range(time: Estimate) -> str:
    if time.low is None or time.high is None:
        return ""
    if time.high < 1.0:
        return f" ({100 * (1 - time.high):.0f} to {100 * (1 - time.low):.0f} % less)"
    if time.low > 1.0:
        return f" ({100 * (time.low - 1):.0f} to {100 * (time.high - 1):.0f} % more)"
    return f" (from {_share(time.low)} to {_share(time.high)})"
