"""How long an update takes, by its geometry: a model fitted to timed updates, and what it predicts with its errors.

The formula lives in `step_time`; the batch from which more stops paying in `knees`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from orchestrator.theory._checks import positive
from orchestrator.theory.critical_batch import Estimate
from orchestrator.theory.fieller import Array
from orchestrator.theory.geometry import Geometry
from orchestrator.theory.step_time import NAMES, Layout, free_parameters, step_seconds

_STARTS = (1.2, 3.0)
"""Of the overlap exponent: its valley may have a minimum at either side."""
_LEAST = 1e-9
"""Of every other parameter, as a share of the median step: what counts as zero."""
_KNEE = 0.05
"""Log residuals beyond this pull on the fit in proportion, not squared (soft L1)."""
_TOO_SMALL = 1e-12
_STEP = 1e-6
"""Of a derivative, as a share of what a parameter is measured in."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long an update took in one geometry: the median over some, after warm-up. `step_s` in seconds, > 0."""

    geometry: Geometry
    step_s: float

    def __post_init__(self) -> None:
        positive("step_s", self.step_s)


@dataclass(frozen=True, kw_only=True)
class StepTimeModel:
    """A fitted model of the step time.

    Attributes:
        parameters: seconds (and the exponent ``overlap``) by name, of `step_time.NAMES`.
        free: names of those that the timings determine; the others are held.
        timings: how many it was fitted to.
        sd_log: standard deviation of ln(seconds) of a timing around the model.
        median_error: median absolute relative distance of the timings from the model.
        confidence: of all intervals.
    """

    parameters: dict[str, float]
    free: tuple[str, ...]
    timings: int
    sd_log: float
    median_error: float
    confidence: float
    _units: Array
    _scatter: float
    _covariance: Array
    _most_workers: tuple[int, int]
    _accumulation: int

    def why_not(self, geometry: Geometry) -> str:
        """Why nothing is predicted for `geometry`, or an empty string."""
        if "update_s" not in self.free and geometry.accumulation != self._accumulation:
            return f"only updates of accumulation {self._accumulation} were timed"
        if geometry.world_size == 1:
            return ""
        place, most = self._place(geometry)
        where = "on several nodes" if geometry.nodes > 1 else "on one node"
        if not most:
            return f"no update of several workers {where} was timed"
        if f"{place}_worker_s" not in self.free and geometry.world_size > most:
            return f"updates of {most} workers only were timed {where}"
        return ""

    def predict(self, geometry: Geometry) -> Estimate:
        """Seconds of an update, with the interval that a timing of it lies in; empty where `why_not` says why.

        Fewer workers than the only number timed in such a place take at most their communication: the interval then
        reaches down to none.
        """
        if self.why_not(geometry):
            return Estimate()
        log_s, half = self._log_seconds(geometry)
        low = log_s - half
        place, most = self._place(geometry)
        if 1 < geometry.world_size < most and f"{place}_worker_s" not in self.free:
            alone = Geometry(micro_batch=geometry.micro_batch, accumulation=geometry.accumulation)
            low = min(low, float(np.subtract(*self._log_seconds(alone))))
        return Estimate(value=math.exp(log_s), low=math.exp(low), high=math.exp(log_s + half))

    def _place(self, geometry: Geometry) -> tuple[str, int]:
        across = geometry.nodes > 1
        return ("across" if across else "local"), self._most_workers[across]

    def _log_seconds(self, geometry: Geometry) -> tuple[float, float]:
        """Log of the seconds, and half the width of its interval."""
        layout, values = Layout.of([geometry]), np.array([self.parameters[name] for name in NAMES])
        pull = _sensitivity(values, self.free, layout, self._units)[0]
        unsure = _quantile(self.confidence, self.timings - len(self.free)) ** 2 * float(pull @ self._covariance @ pull)
        return math.log(float(step_seconds(values, layout)[0])), math.sqrt(self._scatter**2 + unsure)

    def throughput(self, geometry: Geometry) -> Estimate:
        """Samples a second over all workers, with its interval."""
        found = self.predict(geometry)
        if found.value is None or found.low is None or found.high is None:
            return Estimate()
        batch = geometry.global_batch
        return Estimate(value=batch / found.value, low=batch / found.high, high=batch / found.low)

    def speedup(self, before: Geometry, after: Geometry) -> Estimate:
        """Factor on samples a second from one geometry to another, with the interval of the model alone.

        What the timings of both have in common cancels out, and the scatter of single timings is not in it.
        """
        if self.why_not(before) or self.why_not(after):
            return Estimate()
        layout, values = Layout.of([before, after]), np.array([self.parameters[name] for name in NAMES])
        first, second = step_seconds(values, layout)
        pulls = _sensitivity(values, self.free, layout, self._units)
        apart = pulls[0] - pulls[1]
        quantile = _quantile(self.confidence, self.timings - len(self.free))
        half = quantile * math.sqrt(max(0.0, float(apart @ self._covariance @ apart)))
        value = float(first / second) * after.global_batch / before.global_batch
        return Estimate(value=value, low=value * math.exp(-half), high=value * math.exp(half))

    def overhead_share(self, geometry: Geometry) -> float:
        """What of an update's time passes and the update itself cost however few samples they hold, in [0, 1]."""
        values = dict(self.parameters)
        fixed = geometry.accumulation * values["pass_s"] + values["update_s"]
        layout = Layout.of([geometry])
        return fixed / float(step_seconds(np.array([values[name] for name in NAMES]), layout)[0])

    def communication_share(self, geometry: Geometry) -> float:
        """What of an update's time the workers' communication adds to their computation, in [0, 1)."""
        layout, sync = Layout.of([geometry]), ("local_s", "local_worker_s", "across_s", "across_worker_s")
        values = np.array([self.parameters[name] for name in NAMES])
        silent = np.array([0.0 if name in sync else self.parameters[name] for name in NAMES])
        return float(1.0 - step_seconds(silent, layout)[0] / step_seconds(values, layout)[0])


def fit_step_time(timings: Sequence[Timing], *, confidence: float = 0.95) -> StepTimeModel:
    """Fit `step_time.step_seconds` to timed updates, in log space, so that errors count relative to the step.

    A soft L1 loss keeps single slow updates from bending the model. What the timings cannot tell is held: the cost of
    communication where no workers were timed, its growth where one number of workers was, the overhead of an update
    where all have the same accumulation. Errors are those of the linearised model plus the scatter around it, which
    contains what the model leaves out, such as the exact placement of workers.

    Source: Qiao et al. 2021, "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning" (OSDI),
    section 3.2, equations 9 to 11, and its fit in log space, section 4.1.

    Args:
        timings: of at least two micro batches, and more of them than free parameters.
        confidence: of the intervals, in (0, 1).

    Raises:
        ValueError: for too few timings, or one micro batch only; it says how many are needed.

    >>> timed = [Timing(geometry=Geometry(micro_batch=b), step_s=0.096 + 0.001 * b) for b in (8, 32, 128, 512)]
    >>> found = fit_step_time(timed)
    >>> round(found.predict(Geometry(micro_batch=64)).value, 6)
    0.16
    >>> found.why_not(Geometry(micro_batch=64, world_size=2))
    'no update of several workers on one node was timed'
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence = {confidence!r}: must be above 0 and below 1, such as 0.95")
    micros = {timing.geometry.micro_batch for timing in timings}
    if len(micros) < 2:
        raise ValueError(f"micro batches timed: {len(micros)}; a model of the step time needs at least 2")
    layout = Layout.of([timing.geometry for timing in timings])
    free = free_parameters(layout)
    if len(timings) <= len(free):
        raise ValueError(
            f"{len(timings)} timings for {len(free)} unknowns ({', '.join(free)}): time at least {len(free) + 1}"
        )
    log_s = np.log([timing.step_s for timing in timings])
    typical = math.exp(float(np.median(log_s)))
    units = np.array([typical / layout.typical(name) if name.endswith("_s") else 1.0 for name in NAMES])
    values = _best(log_s, layout, free, units)
    residual = np.log(step_seconds(values, layout)) - log_s
    spare = len(timings) - len(free)
    sd_log = max(math.sqrt(float(residual @ residual) / spare), _TOO_SMALL)
    pull = _sensitivity(values, free, layout, units)
    return StepTimeModel(
        parameters=dict(zip(NAMES, values.tolist(), strict=True)),
        free=free,
        timings=len(timings),
        sd_log=sd_log,
        median_error=float(np.median(np.abs(np.expm1(residual)))),
        confidence=confidence,
        _units=units,
        _scatter=_scatter(residual, sd_log, spare, confidence),
        _covariance=np.asarray(
            sd_log**2 * np.linalg.pinv(pull.T @ pull, rcond=1e-10, hermitian=True), dtype=np.float64
        ),
        _accumulation=timings[0].geometry.accumulation,
        _most_workers=(layout.most_workers(across=False), layout.most_workers(across=True)),
    )


def _best(log_s: Array, layout: Layout, free: tuple[str, ...], units: Array) -> Array:
    """The parameters with the least soft L1 loss, in the order of `step_time.NAMES`."""
    at = [NAMES.index(name) for name in free]
    found = None
    for overlap in _STARTS if "overlap" in free else _STARTS[:1]:
        start = np.array([overlap - 1.0 if name == "overlap" else 0.3 for name in free])

        def values(x: Array) -> Array:
            full = np.zeros(len(NAMES))
            full[NAMES.index("overlap")] = 1.0
            full[at] = np.exp(x) * units[at]
            if "overlap" in free:
                full[NAMES.index("overlap")] += 1.0
            return full

        lower = np.full(len(free), math.log(_LEAST))
        upper = np.array([math.log(9.0) if name == "overlap" else math.log(1e3) for name in free])
        tried = optimize.least_squares(
            lambda x, values=values: np.log(step_seconds(values(x), layout)) - log_s,
            np.log(start),
            loss="soft_l1",
            f_scale=_KNEE,
            bounds=(lower, upper),
            xtol=1e-12,
            ftol=1e-12,
        )
        if found is None or tried.cost < found[0]:
            found = tried.cost, values(tried.x)
    assert found is not None
    result: Array = found[1]
    return result


def _sensitivity(values: Array, free: tuple[str, ...], layout: Layout, units: Array) -> Array:
    """Derivative of ln(seconds) by each free parameter, in `units` of it; ``[n, free]``."""
    base = step_seconds(values, layout)
    columns = []
    for name in free:
        step = np.zeros_like(values)
        step[NAMES.index(name)] = _STEP * units[NAMES.index(name)]
        columns.append(np.log(step_seconds(values + step, layout) / base) / _STEP)
    return np.stack(columns, axis=1)


def _scatter(residual: Array, sd_log: float, spare: int, confidence: float) -> float:
    """The distance from the model that so large a share of timings keeps: of a normal, or of the timings if wider."""
    ranked = np.sort(np.abs(residual))
    rank = math.ceil(confidence * (len(ranked) + 1))
    seen = float(ranked[rank - 1]) if rank <= len(ranked) else 0.0
    return max(seen, sd_log * _quantile(confidence, spare))


def _quantile(confidence: float, dof: int) -> float:
    return float(stats.t.ppf(0.5 + 0.5 * confidence, dof))
