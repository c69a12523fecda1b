"""How often the critical batch's interval covers a planted truth, and how far off samples-to-target is.

Beside the critical batch's fit: the percentile bootstrap over seeds, and `scipy.optimize.curve_fit` and its covariance.
Beside the crossing of the expected curve: the mean of the seeds' first crossings, and the first crossing of their mean.
``python benchmarks/coverage.py [--studies 500] [--repeats 200]``
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize

from orchestrator.theory.critical_batch import CriticalBatch, Observation, fit
from orchestrator.theory.target_crossing import Curve, expected_crossing

Array = np.ndarray[Any, np.dtype[np.float64]]
EMIN, SEEDS = 1e4, 3
KINDS = ("bracketed, noise 5 to 10 %", "bracketed, noise 10 to 20 %", "outside the ladder", "censored", "outliers")
UNEQUAL: dict[str, Callable[[float], float]] = {
    "noise 3 % growing to 20 %": lambda x: 0.03 * math.pow(0.2 / 0.03, x),
    "noise 5 % growing to 15 %": lambda x: 0.05 * math.pow(3.0, x),
    "noise 5 %, largest batch 30 %": lambda x: 0.3 if x == 1.0 else 0.05,
}
"""Noise that differs between batches, by how far along the ladder they lie: 0 to 1."""
UNEQUAL_SEEDS = 5
# Updates to a tenth of the initial loss at the best constant learning rate, exact: tests/data/quadratics.csv.
EXACT = {2: (496.715, 0.2373), 8: (139.767, 0.7870), 64: (44.984, 1.6653), 256: (35.162, 1.8418)}


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs with a planted critical batch."""

    truth: float
    runs: list[Observation]


def planted(rng: np.random.Generator, kind: str) -> Study:
    """4 to 8 batches, each 2 or 4 times the one before, log-normal noise of 5 to 20 %, or as `UNEQUAL` has it."""
    ladder = 2.0 ** rng.integers(0, 6) * float(rng.choice([2, 4])) ** np.arange(rng.integers(4, 9))
    first, last = math.log(ladder[0]), math.log(ladder[-1])
    log_truth = rng.uniform(first, last)
    if kind == "outside the ladder":
        log_truth = float(rng.choice([first - rng.uniform(0, 3), last + rng.uniform(0, 3)]))
    low, high = {"5": (0.05, 0.1), "1": (0.1, 0.2)}.get(kind.partition("bracketed, noise ")[2][:1], (0.05, 0.2))
    noise = rng.uniform(low, high)
    batch = np.repeat(ladder, UNEQUAL_SEEDS if kind in UNEQUAL else SEEDS)
    noises: Array = np.full(len(batch), noise)
    if kind in UNEQUAL:
        noises = np.array([UNEQUAL[kind]((math.log(b) - first) / (last - first)) for b in batch])
    samples = EMIN * (1.0 + batch / math.exp(log_truth)) * np.exp(noises * rng.normal(size=len(batch)))
    if kind == "outliers":
        samples *= np.where(rng.random(len(batch)) < 0.05, rng.choice([0.2, 4.0, 10.0], size=len(batch)), 1.0)
    # Half of the runs at the largest batch end before the target.
    budget = EMIN * (1.0 + ladder[-1] / math.exp(log_truth)) if kind == "censored" else math.inf
    runs = [
        Observation(global_batch=int(b), samples=min(float(s), budget), censored=bool(s > budget))
        for b, s in zip(batch, samples, strict=True)
    ]
    return Study(truth=math.exp(log_truth), runs=runs)


def bootstrap(study: Study, rng: np.random.Generator, resamples: int = 300) -> tuple[float, float]:
    """95 % percentile interval over seeds drawn again within each batch, budgets taken for results."""
    batch = np.array([run.global_batch for run in study.runs], dtype=np.float64)
    seeds = len(batch) // len(np.unique(batch))
    y = np.log([run.samples for run in study.runs]).reshape(-1, seeds)
    drawn = np.take_along_axis(y[None], rng.integers(0, seeds, size=(resamples, *y.shape)), axis=2).mean(axis=2)
    grid = np.linspace(math.log(batch[0]) - 8, math.log(batch[-1]) + 8, 600)
    shape = np.log1p(batch[::seeds] / np.exp(grid)[:, None])
    shape -= shape.mean(axis=1, keepdims=True)
    rss = (shape**2).sum(axis=1) - 2.0 * (drawn - drawn.mean(axis=1, keepdims=True)) @ shape.T
    low, high = np.quantile(np.exp(grid[np.argmin(rss, axis=1)]), [0.025, 0.975])
    return float(low), float(high)


def delta(study: Study) -> tuple[float, float] | None:
    """95 % interval from the covariance of `curve_fit`, budgets taken for results; None where it fails."""
    batch = np.array([run.global_batch for run in study.runs], dtype=np.float64)
    samples = np.array([run.samples for run in study.runs])
    start = (float(samples.min()), float(np.median(batch)))
    try:
        best, covariance = optimize.curve_fit(lambda b, emin, bcrit: emin * (1.0 + b / bcrit), batch, samples, p0=start)
    except RuntimeError:
        return None
    reach = 1.96 * math.sqrt(covariance[1, 1])
    return best[1] - reach, best[1] + reach


def covers(found: CriticalBatch, truth: float) -> bool:
    """Whether the interval holds the truth; a refused study counts by the bounds that it still states."""
    return (found.low is None or found.low <= truth) and (found.high is None or truth <= found.high)


def critical_batches(studies: int) -> None:
    """Print a row for each kind of study."""
    print(f"critical batch: {studies} studies a kind, {SEEDS} seeds ({UNEQUAL_SEEDS} where noise is unequal),")
    print("4 to 8 batches; 95 % intervals, coverage in %")
    print("in brackets the median width of an interval, as a share of the truth")
    print(
        f"{'':30} {'given':>6} {'covers':>15} {'with refused':>13} {'median error':>13} "
        f"{'bootstrap':>15} {'curve_fit':>15}"
    )
    for kind in (*KINDS, *UNEQUAL):
        rng = np.random.default_rng(0)
        plans = [planted(rng, kind) for _ in range(studies)]
        found = [(fit(study.runs), study) for study in plans]
        given = [(f, s) for f, s in found if f.critical_batch is not None]
        errors = [abs((f.critical_batch or math.nan) / s.truth - 1.0) for f, s in given]
        ours = [(f.low or 0.0, f.high or math.inf) for f, _ in given]
        boots = [bootstrap(study, rng) for study in plans]
        deltas = [delta(study) for study in plans]
        print(
            f"{kind:30} {len(given):6} {_scored(ours, [s for _, s in given]):>15} "
            f"{percent([covers(f, s.truth) for f, s in found]):13.1f} {100 * statistics.median(errors):11.1f} % "
            f"{_scored(boots, plans):>15} {_scored(deltas, plans):>15}"
        )
        refused = Counter(f.verdict for f, _ in found if f.critical_batch is None)
        if refused:
            print(f"{'':30} refused: " + ", ".join(f"{why} {count}" for why, count in refused.most_common()))


def _scored(intervals: Sequence[tuple[float, float] | None], plans: list[Study]) -> str:
    pairs = list(zip(intervals, plans, strict=True))
    hits = [ends is not None and ends[0] <= study.truth <= ends[1] for ends, study in pairs]
    widths = [(ends[1] - ends[0]) / study.truth for ends, study in pairs if ends is not None]
    return f"{percent(hits):.1f} ({statistics.median(widths):.2f})"


def percent(hits: list[bool]) -> float:
    """Share of hits, percent."""
    return 100.0 * statistics.fmean(hits)


def quadratic_curves(global_batch: int, curves: int, rng: np.random.Generator) -> tuple[Array, Array, float]:
    """SGD on the noisy quadratic, d = 256, to 2.6 times the exact crossing: samples, gaps to the target, answer."""
    updates, lr = EXACT[global_batch]
    h = 1.0 / np.arange(1, 257)
    theta = np.ones((curves, 256), dtype=np.float32)
    keep, kick = (1.0 - lr * h).astype(np.float32), (lr * np.sqrt(h / global_batch)).astype(np.float32)
    every = max(1, round(0.03 * updates))
    samples, losses = [], []
    for update in range(math.ceil(2.6 * updates) + 1):
        if update % every == 0:
            samples.append(float(update * global_batch))
            losses.append(0.5 * (theta.astype(np.float64) ** 2) @ h)
        theta = keep * theta + kick * rng.standard_normal(theta.shape, dtype=np.float32)
    return np.array(samples), np.stack(losses, axis=1) - 0.05 * h.sum(), updates * global_batch


def first_crossing(samples: Array, gaps: Array) -> float:
    """The first time that a curve is at the target, interpolated; nan if it never is."""
    at = int(np.argmax(gaps <= 0))
    if at == 0:
        return math.nan
    share = gaps[at - 1] / (gaps[at - 1] - gaps[at])
    return float(samples[at - 1] + share * (samples[at] - samples[at - 1]))


def crossings(repeats: int) -> None:
    """Print a row for each batch and number of seeds."""
    print(f"\nsamples-to-target on the noisy quadratic, exact answer known: {repeats} repeats, bias and deviation in %")
    print(
        f"{'batch':>5} {'seeds':>5} {'exact':>7} {'expected curve':>16} {'stated error':>12} {'covers':>7} "
        f"{'firsts, mean':>16} {'first of mean':>16}"
    )
    for global_batch in EXACT:
        samples, gaps, exact = quadratic_curves(global_batch, 10 * repeats, np.random.default_rng(global_batch))
        for seeds in (1, 3, 5, 10):
            groups = gaps[: repeats * seeds].reshape(repeats, seeds, -1)
            found = [
                expected_crossing([Curve(samples=samples, values=gap) for gap in group], 0.0, "min") for group in groups
            ]
            ours = np.array([f.samples for f in found if f.samples is not None])
            errors = [f.se_log for f in found if f.se_log is not None]
            inside = [f.low <= exact <= f.high for f in found if f.low is not None and f.high is not None]
            firsts = np.array([np.mean([first_crossing(samples, gap) for gap in group]) for group in groups])
            of_mean = np.array([first_crossing(samples, group.mean(axis=0)) for group in groups])
            print(
                f"{global_batch:5} {seeds:5} {exact:7.0f} {_bias(ours, exact):>16} "
                f"{100 * math.sqrt(statistics.fmean(e**2 for e in errors)):12.1f} {percent(inside):7.1f} "
                f"{_bias(firsts, exact):>16} {_bias(of_mean, exact):>16}"
                + (f"  {repeats - len(ours)} not determined" if len(ours) < repeats else "")
            )


def _bias(values: Array, exact: float) -> str:
    return f"{100 * (np.nanmean(values) / exact - 1.0):+.1f} +- {100 * np.nanstd(values) / exact:.1f}"


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    critical_batches(options.studies)
    crossings(options.repeats)


if __name__ == "__main__":
    main()
