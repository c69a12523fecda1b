"""Trains a fixed list of trials on warm gangs, and finds them again in the record of a run that was cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.config.trial import TrialSpec
from orchestrator.errors import TrialError
from orchestrator.study.runs import MOST_FAILURES, RunRecord, Runs, given_up, records_of

if TYPE_CHECKING:
    from orchestrator.cluster.pool import Pool
    from orchestrator.study.experiment import StudyExperiment


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A trial to train.

    Attributes:
        name: what it is within its study; equal names are one trial.
        spec: in full.
        phase: for people, such as ``branch``.
    """

    name: str
    spec: TrialSpec
    phase: str


@dataclass(kw_only=True)
class Trained(RunRecord):
    """A trial with what it is within its study, and its spec, plain, as its ``trial_started`` event has it."""

    name: str
    spec: Mapping[str, Any] = field(default_factory=dict)


def trained_of(events: Iterable[Mapping[str, Any]]) -> list[Trained]:
    """The trials of a record, in the order in which they began."""
    return records_of(events, lambda one: Trained(trial=one["trial"], name=one["asked"], spec=one["spec"]))


def by_name(trials: Iterable[Trained]) -> dict[str, Trained]:
    """The trials that did not fail, by name; the last of a name."""
    return {one.name: one for one in trials if one.status != "failed"}


def left_out(trials: Iterable[Trained]) -> list[str]:
    """Which trials were given up, and why, in sentences."""
    return [f"{one.name} is left out: {_why(one)}" for one in given_up(trials, lambda one: one.name)]


class Crew:
    """Has trials trained.

    Args:
        pool: the gangs.
        known: trials of an earlier process, as its record tells them.
    """

    def __init__(self, pool: Pool, known: Iterable[Trained] = ()) -> None:
        self._runs: Runs[Trained] = Runs(pool, known)

    def train(self, wanted: Sequence[Wanted]) -> dict[str, Trained]:
        """Train what has not been trained yet, all at once as far as there are gangs; the trials of `wanted` by name.

        A trial that fails again is left out.

        Raises:
            TrialError: all of them failed again.
            GangError: no gang is left.
            OrchestratorError: the record cannot be written any more.
        """
        there, asked = by_name(self._runs.all), {one.name: one for one in wanted}
        for one in wanted:
            earlier = there.get(one.name)
            if earlier is None or earlier.status == "running":
                self._submit(one, earlier)
        while self._runs.under_way:
            for trial in self._runs.news():
                if trial.status == "running":
                    self._runs.ask(trial)
                elif trial.status == "failed" and trial not in self._given_up():
                    self._submit(asked[trial.name], None)
        there = by_name(self._runs.all)
        lost = [one for one in self._given_up() if one.name in asked]
        if lost and not any(name in there for name in asked):
            raise TrialError(f"{lost[-1].name} {_why(lost[-1])}")
        return {name: there[name] for name in asked if name in there}

    def _given_up(self) -> list[Trained]:
        return given_up(self._runs.of_now, lambda one: one.name)

    def _submit(self, wanted: Wanted, trial: Trained | None) -> None:
        if trial is None:
            trial = Trained(trial=self._runs.next_id, name=wanted.name, spec=wanted.spec.to_dict())
        trial.evaluations.clear()  # what an earlier process had is told again
        params = {"batch.global": wanted.spec.plan.global_batch}
        self._runs.submit(trial, wanted.spec, {"params": params, "phase": wanted.phase, "asked": wanted.name})
        self._runs.ask(trial)


def train_all(plan: Fixed, experiment: StudyExperiment) -> bool:
    """Train every run of a plan that holds them all from the start; True: that is all.

    Raises:
        TrialError, GangError, OrchestratorError: as `Crew.train`.
    """
    known: Sequence[Trained] = trained_of(experiment.past.events) if experiment.past else ()
    Crew(experiment.pool, known).train(plan.runs())
    return True


class Fixed(Protocol):
    """A plan that holds all of its runs from the start."""

    def runs(self) -> Sequence[Wanted]:
        """Every run."""


def _why(one: Trained) -> str:
    return f"failed {MOST_FAILURES} times: {one.outcome['reason']}"
