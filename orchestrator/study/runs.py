"""What the runs of every study share: their record, and how they are handed in, followed and tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from orchestrator.cluster.following import Following
from orchestrator.config.trial import TrialSpec

if TYPE_CHECKING:
    from orchestrator.cluster.pool import Pool

MOST_FAILURES = 2
"""Of one run: one that fails once is trained again, one that fails again has a reason of its own."""


@dataclass(kw_only=True)
class RunRecord:
    """A run as the record tells it.

    Attributes:
        trial: its id.
        evaluations: as the journal has them, ascending in samples.
        status: of the trial; ``running`` until it has ended.
        outcome: as the journal has it, once it has ended.
    """

    trial: str
    evaluations: list[Mapping[str, Any]] = field(default_factory=list)
    status: str = "running"
    outcome: Mapping[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples seen, as far as is known; of a branch with those before it."""
        last = self.evaluations[-1]["samples_seen"] if self.evaluations else 0
        return int(self.outcome.get("samples_seen", last))


R = TypeVar("R", bound=RunRecord)


def records_of(events: Iterable[Mapping[str, Any]], begin: Callable[[Mapping[str, Any]], R]) -> list[R]:
    """The runs of a record, in the order in which they began; `begin` makes one of its ``trial_started`` event."""
    found: dict[str, R] = {}
    for event in events:
        match event["event"]:
            case "trial_started":
                found[event["trial"]] = begin(event)
            case "evaluation":
                found[event["trial"]].evaluations.append(event)
            case "trial_ended":
                found[event["trial"]].status = event["status"]
                found[event["trial"]].outcome = event["outcome"]
    return list(found.values())


def given_up(runs: Iterable[R], key: Callable[[R], Hashable]) -> list[R]:
    """The last failure of each key that failed `MOST_FAILURES` times, where none of that key has not failed."""
    failures = Counter[Hashable]()
    last: dict[Hashable, R] = {}
    fine: set[Hashable] = set()
    for one in runs:
        if one.status == "failed":
            failures[key(one)] += 1
            last[key(one)] = one
        else:
            fine.add(key(one))
    return [one for name, one in last.items() if failures[name] >= MOST_FAILURES and name not in fine]


class Runs(Generic[R]):
    """Runs on the gangs of a pool.

    Args:
        pool: the gangs.
        known: runs of an earlier process, as its record tells them.

    Attributes:
        all: every run, in the order in which they began.
    """

    def __init__(self, pool: Pool, known: Iterable[R] = ()) -> None:
        self._following = Following(pool)
        self.all: list[R] = list(known)
        # A process that takes a study on tries again what failed before it.
        self._failed_before = {one.trial for one in self.all if one.status == "failed"}

    @property
    def next_id(self) -> str:
        """Of a run that is begun now."""
        return f"t{len(self.all):04d}"

    @property
    def under_way(self) -> list[R]:
        """Those that somebody waits for."""
        asked = set(self._following.trials)
        return [one for one in self.all if one.trial in asked]

    @property
    def of_now(self) -> list[R]:
        """Those by which this process may give up: without the failures of an earlier one."""
        return [one for one in self.all if one.trial not in self._failed_before]

    def submit(self, run: R, spec: TrialSpec, info: Mapping[str, Any]) -> None:
        """Hand a run in; a new one, or one that an earlier process left."""
        if all(one is not run for one in self.all):
            self.all.append(run)
        number = int(run.trial.removeprefix("t"))
        self._following.submit(run.trial, spec, {"number": number, "repeat_of": None, **info})

    def ask(self, run: R) -> None:
        """Ask for what comes after its evaluations."""
        self._following.ask(run.trial, run.evaluations)

    def news(self) -> list[R]:
        """Wait for an answer; the runs that have one more evaluation, or have ended. Errors are `Following.news`'s."""
        found, runs = [], {one.trial: one for one in self.all}
        for name, message in self._following.news():
            run = runs[name]
            if "over" in message:
                run.outcome, run.status = message["outcome"], message["outcome"]["status"]
            else:
                run.evaluations.append(message)
            found.append(run)
        return found
