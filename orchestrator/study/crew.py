"""Trains a fixed list of trials on warm gangs, and finds them again in the record of a run that was cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.cluster.following import Following
from orchestrator.config.trial import TrialSpec
from orchestrator.errors import TrialError

if TYPE_CHECKING:
    from orchestrator.cluster.pool import Pool

MOST_FAILURES = 2
"""Of one trial: one that fails once is trained again, one that fails again has a reason of its own."""


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
class Trained:
    """A trial as the record tells it: its evaluations, ascending in samples, and once it has ended its outcome.

    `spec` is that of the trial, plain, as its ``trial_started`` event has it.
    """

    trial: str
    name: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    status: str = "running"
    evaluations: list[Mapping[str, Any]] = field(default_factory=list)
    outcome: Mapping[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples seen, as far as is known; of a branch with those before it."""
        last = self.evaluations[-1]["samples_seen"] if self.evaluations else 0
        return int(self.outcome.get("samples_seen", last))


def trained_of(events: Iterable[Mapping[str, Any]]) -> list[Trained]:
    """The trials of a record, in the order in which they began."""
    found: dict[str, Trained] = {}
    for event in events:
        match event["event"]:
            case "trial_started":
                found[event["trial"]] = Trained(trial=event["trial"], name=event["asked"], spec=event["spec"])
            case "evaluation":
                found[event["trial"]].evaluations.append(event)
            case "trial_ended":
                found[event["trial"]].status = event["status"]
                found[event["trial"]].outcome = event["outcome"]
    return list(found.values())


def by_name(trials: Iterable[Trained]) -> dict[str, Trained]:
    """The trials that did not fail, by name; the last of a name."""
    return {one.name: one for one in trials if one.status != "failed"}


class Crew:
    """Has trials trained.

    Args:
        pool: the gangs.
        known: trials of an earlier process, as its record tells them.
    """

    def __init__(self, pool: Pool, known: Iterable[Trained] = ()) -> None:
        self._following = Following(pool)
        self._trials = list(known)
        self._asked: dict[str, tuple[Trained, Wanted]] = {}
        self._failures = Counter[str]()

    def train(self, wanted: Sequence[Wanted]) -> dict[str, Trained]:
        """Train what has not been trained yet, all at once as far as there are gangs; every trial of `wanted` by name.

        Raises:
            TrialError: a trial failed again.
            GangError: no gang is left.
            OrchestratorError: the record cannot be written any more.
        """
        there = by_name(self._trials)
        for one in wanted:
            earlier = there.get(one.name)
            if earlier is None or earlier.status == "running":
                self._submit(one, earlier)
        while self._asked:
            for name, message in self._following.news():
                self._take(*self._asked.pop(name), message)
        there = by_name(self._trials)
        return {one.name: there[one.name] for one in wanted}

    def _submit(self, wanted: Wanted, trial: Trained | None) -> None:
        if trial is None:
            trial = Trained(trial=f"t{len(self._trials):04d}", name=wanted.name, spec=wanted.spec.to_dict())
            self._trials.append(trial)
        trial.evaluations.clear()  # what an earlier process had is told again
        spec = wanted.spec
        info = {
            "number": int(trial.trial.removeprefix("t")),
            "params": {"batch.global": spec.plan.global_batch},
            "phase": wanted.phase,
            "repeat_of": None,
            "asked": wanted.name,
        }
        self._following.submit(trial.trial, spec, info)
        self._ask(trial, wanted)

    def _ask(self, trial: Trained, wanted: Wanted) -> None:
        self._following.ask(trial.trial, trial.evaluations)
        self._asked[trial.trial] = trial, wanted

    def _take(self, trial: Trained, wanted: Wanted, message: Mapping[str, Any]) -> None:
        if "over" not in message:
            trial.evaluations.append(message)
            self._ask(trial, wanted)
            return
        trial.outcome, trial.status = message["outcome"], message["outcome"]["status"]
        if trial.status != "failed":
            return
        self._failures[trial.name] += 1
        if self._failures[trial.name] >= MOST_FAILURES:
            raise TrialError(f"{trial.name} failed {MOST_FAILURES} times: {trial.outcome['reason']}")
        self._submit(wanted, None)
