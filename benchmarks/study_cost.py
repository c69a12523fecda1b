"""What a critical-batch study costs and how far off it is, simulated: the planner, grids in random order, an oracle.

SGD on the noisy quadratic of tests/data/quadratics.csv (exact critical batch of the ladder: 28.9), or problems of other
shapes, with the real planner, stopping rules and fits. ``python benchmarks/study_cost.py [--studies 5] [--gangs 1]``
"""

from __future__ import annotations

import argparse
import heapq
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from orchestrator.theory.ladder import SEARCH_OVERSHOOT, Ended, LadderConfig, Result, Run
from orchestrator.theory.ladder_planner import Planner, Rival, Verdict
from orchestrator.theory.ladder_stop import beyond, hopeless
from orchestrator.theory.ladder_summary import StudyResult, summarise
from orchestrator.theory.target_crossing import OVERSHOOT, Curve, expected_crossing

Array = np.ndarray[Any, np.dtype[np.float64]]
DIM = 256
CURVATURE = 1.0 / np.arange(1, DIM + 1)
START_LOSS = 0.5 * float(np.sum(CURVATURE))
# Samples to a tenth of the initial loss at the best constant learning rate, and that: tests/data/quadratics.csv.
EXACT = {
    2: (993.4, 0.2373),
    4: (1031.2, 0.4479),
    8: (1118.1, 0.7870),
    16: (1331.0, 1.1890),
    64: (2879.0, 1.6653),
    256: (9001.5, 1.8418),
}
CRITICAL, ALPHA = 28.9, 0.78


class Quadratic:
    """SGD on h_i = 1/i from theta = 1 with gradient noise h_i / B; a seed's noise is the same at every rate."""

    target = 0.1 * START_LOSS
    exact = EXACT

    def evaluations(self, global_batch: int, lr: float, seed: int) -> Iterator[tuple[float, float]]:
        """(samples, expected loss), every 32 samples or every update."""
        rng = np.random.default_rng([seed, global_batch])
        keep, kick = 1.0 - lr * CURVATURE, lr * np.sqrt(CURVATURE / global_batch)
        theta, every, updates = np.ones(DIM), max(1, 32 // global_batch), 0
        yield 0.0, START_LOSS
        while True:
            for noise in rng.standard_normal((every, DIM)):
                theta = keep * theta - kick * noise
            updates += every
            yield float(updates * global_batch), 0.5 * float(CURVATURE @ theta**2)


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Curves (S / t)^fall whose crossing S follows a given valley.

    Attributes:
        exponent: of the best learning rate below the critical batch.
        cliff: ln(lr / best) above which the target is never reached.
        above: cost of ln(lr / best)^2 above the best; below it is 1 / lr, or the same where `symmetric`.
        diverges: whether curves beyond the cliff diverge; else they come to rest above the target.
        seed_sd: of ln(S) between seeds, larger at larger rates.
        noise: of one evaluation, in units of the target.
        reachable: whether there is a best rate at all.
    """

    exponent: float = 1.0
    cliff: float = 0.5
    above: float = 1.0
    symmetric: bool = False
    diverges: bool = False
    seed_sd: float = 0.08
    noise: float = 0.01
    reachable: bool = True
    critical: float = 28.9
    peak: float = 2.0
    target: float = 1.0
    exact: dict[int, tuple[float, float]] = field(init=False)

    def __post_init__(self) -> None:
        exact = {
            b: (1000.0 * (1 + b / self.critical), self.peak / (1 + self.critical / b) ** self.exponent) for b in EXACT
        }
        object.__setattr__(self, "exact", exact)

    def evaluations(self, global_batch: int, lr: float, seed: int) -> Iterator[tuple[float, float]]:
        """(samples, value), every 32 samples or every update."""
        samples, best = self.exact[global_batch]
        x = math.log(lr / best)
        rng = np.random.default_rng([seed, global_batch])
        lucky = math.exp(self.seed_sd * math.exp(min(x, 1.0)) * float(rng.normal()))
        below = self.above * x * x if self.symmetric else -x - math.log(2.0 - math.exp(x)) if x < 0 else 0.0
        height = below if x < 0 else self.above * x * x
        needed, rest, drift = samples * math.exp(min(height, 20.0)) * lucky, 0.0, 0.0
        if x > self.cliff or not self.reachable:
            rest = 1.1
        step, t = float(global_batch * max(1, 32 // global_batch)), 0.0
        while True:
            value = ((needed * 1.02) / (t + 0.02 * needed)) ** 0.7 + rest
            if rest and self.diverges and x > self.cliff and t > 0.1 * samples:
                value = math.inf
            yield t, value + drift
            drift = 0.9 * drift + math.sqrt(1 - 0.81) * self.noise * float(rng.normal())
            t += step


Problem = Quadratic | Synthetic


def trained(problem: Problem, run: Run, rival: Rival | None) -> Result:
    """What an executor does: evaluate, ask the rules, stop; `rival` None: the run is not raced."""
    times: list[float] = []
    values: list[float] = []
    ended: Ended = "budget"
    for t, value in problem.evaluations(run.global_batch, run.lr, run.seed):
        times.append(t)
        values.append(value)
        curve = Curve(samples=np.array(times), values=np.array(values))
        if not math.isfinite(value) or value > 1e6:
            values[-1] = math.inf
            ended = "diverged"
            break
        if beyond(curve, problem.target, "min", run.overshoot, run.least_samples):
            ended = "overshot"
            break
        if rival is not None and hopeless(curve, problem.target, "min", rival.samples, rival.se_log, run.max_samples):
            ended = "raced"
            break
        if t >= run.max_samples:
            break
    return Result(run=run, curve=Curve(samples=np.array(times), values=np.array(values)), ended=ended)


def studied(problem: Problem, config: LadderConfig, gangs: int = 1) -> tuple[list[Result], Verdict]:
    """A study on some gangs; what a run takes is proportional to its updates, as on ever more workers."""
    planner = Planner(config=config)
    results: list[Result] = []
    under_way: list[tuple[float, int, Result]] = []
    now, count = 0.0, 0
    while True:
        free = gangs - len(under_way)
        found = planner.next_runs(results, [one.run for _, _, one in under_way], free)
        if isinstance(found, Verdict):
            return results, found
        for run in found:
            done = trained(problem, run, planner.rival(results, run) if run.purpose == "search" else None)
            heapq.heappush(under_way, (now + done.samples / run.global_batch, count, done))
            count += 1
        now, _, done = heapq.heappop(under_way)
        results.append(done)


def gridded(
    problem: Problem, config: LadderConfig, finals: dict[int, int], order: int, seeds: int
) -> tuple[float, dict[int, float]]:
    """Samples of 20 rates a batch in random order with the same race, estimator and final seeds; errors by batch."""
    rng = np.random.default_rng([config.seed, order])
    spent, errors = 0.0, {}
    for batch in config.batches:
        best = (math.inf, 0.0, 0.1)
        for lr in rng.permutation(np.geomspace(config.lr_low, config.lr_high, 20)):
            curves = []
            for number in range(seeds):
                run = _run(config, batch, float(lr), number, "search")
                done = trained(problem, run, Rival(samples=best[0], se_log=best[2]))
                spent += done.samples
                curves.append(done.curve)
                if done.ended != "overshot":
                    break
            else:
                found = expected_crossing(curves, problem.target, "min", overshoot=SEARCH_OVERSHOOT)
                if found.samples is not None and found.samples < best[0]:
                    best = (found.samples, float(lr), min((found.se_log or 0.1) * math.sqrt(seeds), 0.3))
        cost, errors[batch] = _finals(problem, config, batch, best[1], finals[batch])
        spent += cost
    return spent, errors


def _run(config: LadderConfig, batch: int, lr: float, number: int, purpose: Any) -> Run:
    overshoot = OVERSHOOT if purpose == "final" else SEARCH_OVERSHOOT
    seed = config.seed_of(batch, purpose, number)
    return Run(
        global_batch=batch, lr=lr, seed=seed, max_samples=config.budget_samples, purpose=purpose, overshoot=overshoot
    )


def _finals(problem: Problem, config: LadderConfig, batch: int, lr: float, seeds: int) -> tuple[float, float]:
    if lr == 0.0:
        return 0.0, math.inf
    done = [trained(problem, _run(config, batch, lr, number, "final"), None) for number in range(seeds)]
    crossing = expected_crossing([one.curve for one in done], problem.target, "min")
    samples = crossing.samples or math.inf
    return sum(one.samples for one in done), math.log(samples / problem.exact[batch][0])


def oracle(problem: Problem, config: LadderConfig, finals: dict[int, int]) -> float:
    """Samples of the same final seeds at the best rate of each batch."""
    return sum(_finals(problem, config, b, problem.exact[b][1], n)[0] for b, n in finals.items())


def final_seeds(found: StudyResult) -> dict[int, int]:
    """How many final runs each batch got."""
    return {one.global_batch: one.seeds for one in found.batches if one.seeds}


def quadratic_config(seed: int, **changes: Any) -> LadderConfig:
    """The study of the acceptance: no more is told than a user would."""
    plain = LadderConfig(
        batches=tuple(EXACT),
        start_lr=0.3,
        reference_batch=8,
        lr_low=0.01,
        lr_high=10.0,
        target=Quadratic.target,
        budget_samples=40_000,
        total_samples=5_000_000,
        seed=seed,
    )
    return replace(plain, **changes)


def errors_of(found: StudyResult, problem: Problem) -> dict[int, float]:
    """ln(samples / exact samples) by batch."""
    return {
        one.global_batch: math.log(one.crossing.samples / problem.exact[one.global_batch][0])
        for one in found.batches
        if one.crossing is not None and one.crossing.samples
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row a study, and means; grid(k) tries every learning rate under k seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=5)
    parser.add_argument("--gangs", type=int, default=1)
    parser.add_argument("--orders", type=int, default=5)
    asked = parser.parse_args(arguments)
    problem = Quadratic()
    print("study  Bcrit  low-high     alpha  oracles  of grid(1)  of grid(3)  ln errors by batch, %")
    rows: list[list[float]] = []
    missed: dict[str, list[float]] = {"planner": [], "grid(1)": [], "grid(3)": []}
    for seed in range(asked.studies):
        config = quadratic_config(seed)
        results, _ = studied(problem, config, asked.gangs)
        found = summarise(config, results)
        spent, finals, errors = (
            found.search_samples + found.final_samples,
            final_seeds(found),
            errors_of(found, problem),
        )
        row = [spent / oracle(problem, config, finals)]
        missed["planner"] += errors.values()
        for seeds in (1, 3):
            grids = [gridded(problem, config, finals, order, seeds) for order in range(asked.orders)]
            row.append(spent / statistics.mean(samples for samples, _ in grids))
            missed[f"grid({seeds})"] += [error for _, by_batch in grids for error in by_batch.values()]
        rows.append(row)
        c, alpha = found.critical, found.exponent.alpha or math.nan
        print(
            f"{seed:5d} {c.critical_batch or 0:6.1f}  {c.low or 0:5.1f}-{c.high or 0:5.1f} {alpha:8.2f} {row[0]:8.2f}"
            f" {row[1]:11.2f} {row[2]:11.2f}   " + " ".join(f"{100 * e:5.1f}" for e in errors.values()),
            flush=True,
        )
    means = [statistics.mean(column) for column in zip(*rows, strict=True)]
    print("mean of oracles, of grid(1), of grid(3):", *(f"{mean:.2f}" for mean in means))
    for name, every in missed.items():
        reached = [100.0 * error for error in every if math.isfinite(error)]
        mean, size = statistics.mean(reached), statistics.mean(abs(error) for error in reached)
        lost = len(every) - len(reached)
        print(f"{name}: mean error {mean:.1f} %, mean size {size:.1f} %, not reached {lost} of {len(every)}")


if __name__ == "__main__":
    main()
