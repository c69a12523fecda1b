"""What is made of a probe's measurements: with a study what to run, and with earlier profiles what moved."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.config import yaml_form
from orchestrator.probe import profile, speed
from orchestrator.probe.experiment import ProbeExperiment
from orchestrator.probe.plan import ProbePlan
from orchestrator.probe.studied import Studied
from orchestrator.probe.timing import placed
from orchestrator.theory.bridge import bridge
from orchestrator.theory.critical_batch import Estimate
from orchestrator.theory.doubling import should_double
from orchestrator.theory.geometry import Geometry
from orchestrator.theory.recommendation import Choice, NothingToRecommend, Recommendation, devices_fed, recommend
from orchestrator.theory.throughput import StepTimeModel
from orchestrator.tracking.events import read_events

NAMED = ("fastest", "balanced", "cheapest")
_MOST_PASSES = 64
"""Largest accumulation that is looked at."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judge:
    """What a probe was asked beside measuring.

    Attributes:
        study: to say what to run; None says only what is efficient.
        profiles: folder of the profiles.
        record: whether to keep this one.
        compare: whether to say what moved since the last one.
    """

    study: Studied | None = None
    profiles: str = "profiles"
    record: bool = False
    compare: bool = False

    @property
    def asked(self) -> bool:
        """Whether anything was asked beside measuring."""
        return self.study is not None or self.record or self.compare

    def __call__(self, plan: ProbePlan, experiment: ProbeExperiment) -> dict[str, Any]:
        """``recommendation``, ``compared``, ``broken`` (why the comparison did not hold, or an empty text) and
        ``sentences``; specs are written into the run directory."""
        events = read_events(experiment.run_dir.events)
        timed = speed.timed_of(events)
        outcome = experiment.outcome()
        model = speed.fitted(timed)
        found = what_to_run(plan, self.study, timed, model, outcome)
        for name, spec in found.pop("specs", {}).items():
            experiment.run_dir.write(f"{name}.yaml", yaml_form.dump(spec))
        told = {"recommendation": found, "compared": None, "broken": "", "sentences": found.pop("sentences")}
        mine = profile.profile_of(plan, timed, outcome["memory"]["predicted"], events[0])
        if self.compare:
            told["compared"] = profile.compare(mine, profile.kept(self.profiles))
            said = profile.sentences(told["compared"])
            told["broken"] = said[0] if told["compared"]["moved"] else ""
            told["sentences"] += said
        if self.record:
            told["sentences"].append(f"Profile kept: {profile.keep(self.profiles, mine, plan.spec.name)}")
        return told


def what_to_run(
    plan: ProbePlan,
    study: Studied | None,
    timed: Mapping[Geometry, speed.Timed],
    model: StepTimeModel | str,
    outcome: Mapping[str, Any],
) -> dict[str, Any]:
    """The recommendation: ``choices``, ``front``, the three that have a name, their ``specs``, and ``sentences``."""
    efficient = _efficient(plan, timed, outcome)
    if study is None:
        return {"choices": [], "efficient": speed.plain(efficient), "sentences": [*_without(efficient, timed)]}

    def per_s(geometry: Geometry) -> Estimate:
        if geometry in timed:
            return timed[geometry].per_s
        return Estimate() if isinstance(model, str) else model.throughput(geometry)

    ceiling = outcome["memory"]["micro_batch"] or max(g.micro_batch for g in timed)
    geometries = list(_geometries(plan, sorted(study.rates), ceiling, outcome["device"]["nodes"]))
    try:
        found = recommend(geometries, study.samples, per_s)
    except NothingToRecommend as error:
        return {"choices": [], "efficient": speed.plain(efficient), "sentences": [f"Nothing to recommend: {error}"]}
    named = {name: getattr(found, name) for name in NAMED}
    return {
        "choices": [_plain(choice, study) for choice in found.choices],
        "front": [_plain(choice, study) for choice in found.front],
        **{name: _plain(choice, study) for name, choice in named.items()},
        "efficient": speed.plain(efficient),
        "specs": {name: spec_of(study, choice.geometry) for name, choice in named.items()},
        "sentences": [*_with(plan, study, found, efficient, model, outcome)],
    }


def spec_of(study: Studied, geometry: Geometry) -> dict[str, Any]:
    """The study's spec as a sweep of one trial at a geometry, with the learning rate that the study found there."""
    spec: dict[str, Any] = copy.deepcopy(dict(study.spec))
    batch = geometry.global_batch
    spec["batch"] |= {
        "global": batch,
        "reference": batch,
        "micro": geometry.micro_batch,
        "micro_max": None,
        "accumulation": geometry.accumulation,
    }
    spec["lr"] |= {"base": study.rates[batch], "rule": "none"}
    spec["cluster"] |= {"workers": geometry.world_size, "min_workers": 1}
    spec["search"] |= {"trials": 1, "sampler": "random", "early_stopping": "none", "seeds": 1}
    return {**spec, "space": {}}


def _geometries(plan: ProbePlan, batches: Sequence[int], ceiling: int, nodes: int) -> Iterator[Geometry]:
    """Every split of a studied batch that fits; batches between have no learning rate that was found."""
    for batch in batches:
        for world in plan.worlds:
            per_worker, rest = divmod(batch, world)
            for passes in range(1, _MOST_PASSES + 1) if not rest else ():
                if per_worker % passes == 0 and per_worker // passes <= ceiling:
                    geometry = Geometry(
                        micro_batch=per_worker // passes, accumulation=passes, world_size=world, nodes=1
                    )
                    yield placed(geometry, plan, nodes)


def _efficient(plan: ProbePlan, timed: Mapping[Geometry, speed.Timed], outcome: Mapping[str, Any]) -> Geometry:
    """On all workers the smallest micro batch that was timed near the ceiling; without a knee the fastest."""
    world = plan.spec.cluster.workers
    curve = sorted((g for g in timed if g.world_size == world and g.accumulation == 1), key=lambda g: g.micro_batch)
    curve = curve or sorted(timed, key=lambda g: g.micro_batch)
    knees = next((k for k in outcome["knees"] if k["world_size"] == world and not k["reason"]), None)
    knee = knees and knees["ceiling"]["value"]
    near = [g for g in curve if knee and g.micro_batch >= knee]
    return near[0] if near else max(curve, key=lambda g: timed[g].per_s.value or 0.0)


def _without(efficient: Geometry, timed: Mapping[Geometry, speed.Timed]) -> Iterator[str]:
    speed_of = timed[efficient].per_s.value or 0.0
    yield f"Efficient: {efficient}, at {speed_of:,.0f} samples a second."
    yield (
        "Which batch learns best is not known: run python -m orchestrator.study, and give its folder with --study for "
        "the time to the target of every geometry."
    )


def _with(
    plan: ProbePlan,
    study: Studied,
    found: Recommendation,
    efficient: Geometry,
    model: StepTimeModel | str,
    outcome: Mapping[str, Any],
) -> Iterator[str]:
    for name in NAMED:
        choice: Choice = getattr(found, name)
        time, rate = choice.time_s, study.rates[choice.geometry.global_batch]
        yield (
            f"{name.capitalize()}: {choice.geometry}, learning rate {rate:.3g}: {_span(time)} s to the target, "
            f"{choice.cost:.3g} device-hours ({name}.yaml)."
        )
    critical, knee = study.critical_batch, _knee(outcome)
    if knee is None or critical.value is None:
        missing = "the critical batch" if knee else "a micro batch from which more gains little"
        yield f"How many devices the critical batch can feed is not determined: {missing} is not known."
    else:
        what, micro = knee
        yield (
            f"The critical batch of {critical.value:.0f} feeds {_span(devices_fed(critical, micro), digits='.0f')} "
            f"device(s) at micro batch {micro:.0f}, {what}."
        )
    quality = min(study.rates, key=lambda batch: study.samples(batch).value or float("inf"))
    yield f"Fewest samples: batch {quality}; most samples a second: batch {efficient.global_batch}."
    yield f"Between the two, {bridge(efficient, quality, critical).answer}."
    at = found.balanced.geometry
    twice = dataclasses.replace(at, micro_batch=2 * at.micro_batch)
    gained = Estimate() if isinstance(model, str) else model.speedup(at, twice)
    doubled = should_double(at.global_batch, critical, gained, study.exponent)
    yield f"Memory is free: double batch {at.global_batch}? {doubled.answer}."


def _knee(outcome: Mapping[str, Any]) -> tuple[str, float] | None:
    """The micro batch from which one device works well, and in what sense."""
    knees: Mapping[str, Any] = next((k for k in outcome["knees"] if k["world_size"] == 1 and not k["reason"]), {})
    senses = (("ceiling", "within 10 % of the ceiling of speed"), ("doubling", "from which doubling gains under 30 %"))
    known = [(sense, float(knees[name]["value"])) for name, sense in senses if knees and knees[name]["value"]]
    return known[0] if known else None


def _plain(choice: Choice, study: Studied) -> dict[str, Any]:
    parts = ("samples", "per_s", "time_s", "device_hours")
    rate = study.rates.get(choice.geometry.global_batch)
    return {**speed.plain(choice.geometry), "lr": rate, **{n: dataclasses.asdict(getattr(choice, n)) for n in parts}}


def _span(found: Estimate, *, digits: str = ".3g") -> str:
    if found.value is None:
        return "?"
    if found.low is None or found.high is None:
        return f"{found.value:{digits}}"
    return f"{found.value:{digits}} ({found.low:{digits}} to {found.high:{digits}})"
