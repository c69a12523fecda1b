"""The post office between trials and gangs: who waits, who trains what, what was reported, who should stop.

Plain asyncio, no Ray in here: the driver runs it as an async actor, tests run it in an event loop. It writes the
sweep's journal, so a report is durable before it is acknowledged.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.training.records import Outcome

MAX_ATTEMPTS = 3


class Journal(Protocol):
    """Where events are kept; `append` returns once the event is durable."""

    def append(self, event: str, **fields: Any) -> Any:
        """Write one event."""


class Score(Protocol):
    """The objective's value of a finished trial, from its evaluations; None if it has none."""

    def __call__(self, evaluations: list[dict[str, Any]], outcome: dict[str, Any]) -> Any:
        """Value, or list of values."""


@dataclass(eq=False)
class _Job:
    trial: str
    spec: dict[str, Any]
    info: dict[str, Any]
    messages: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)
    stopped: bool = False
    stopped_by: str | None = None
    attempts: int = 0
    ended: bool = False


@dataclass
class _Gang:
    token: int = 0
    job: _Job | None = None
    last_update_at: float | None = None
    trials_taken: int = 0
    dead: str | None = None


class Mailbox:
    """Hands trials to gangs in order, carries their evaluations back, and keeps the journal.

    A trial is known by its id. A gang is known by its index and the token of its present incarnation; what an earlier
    incarnation still says is ignored. A trial whose gang breaks is handed out again, at most `MAX_ATTEMPTS` times;
    evaluations that it repeats are recognised by their samples seen. A trial that was told to stop counts as stopped,
    whatever its gang still does with it before it hears of that: the search has been told so. When the journal cannot
    be written any more the sweep is over, for what is not durable did not happen.
    """

    def __init__(self, journal: Journal, score: Score, gangs: int) -> None:
        self._journal = journal
        self._score = score
        self._gangs = [_Gang() for _ in range(gangs)]
        self._jobs: dict[str, _Job] = {}
        self._queue: collections.deque[_Job] = collections.deque()
        self._changed = asyncio.Condition()
        self._closing = False
        self._lost: str | None = None

    async def append(self, event: str, fields: dict[str, Any]) -> None:
        """Write an event of the driver's into the journal."""
        self._journal.append(event, **fields)

    # For the side that searches.

    async def submit(self, trial: str, spec: dict[str, Any], info: dict[str, Any]) -> None:
        """Queue a trial. `info` is what its ``trial_started`` event says beside id and spec.

        A trial that is known already is left alone: Tune starts a new actor for a trial, gives the trial to another
        that has become free meanwhile, and the new one begins with the same trial when it is up at last.
        """
        if trial in self._jobs:
            return
        job = _Job(trial, spec, info)
        if self._closing:  # its Tune trial came up too late
            self._jobs[trial] = job
            self._tell(job, _failed("the sweep is over", self._lost or "no trial begins any more"), None)
            return
        self._write("trial_started", trial=trial, spec=spec, **info)
        self._jobs[trial] = job
        if reason := self._broken():
            self._end(job, _failed("no gang is left", reason))
        else:
            self._queue.append(job)
        await self._notify()

    async def next_message(self, trial: str) -> dict[str, Any]:
        """The trial's next evaluation, or at its end ``{"outcome", "value", "over"}``. Waits for it.

        ``over`` says that no further trial can be trained.
        """
        return await self._jobs[trial].messages.get()

    async def cancel(self, trial: str, by: str | None) -> bool:
        """Stop a trial at its next evaluation; one that has not begun never does. False if it has ended by itself.

        `by` is the policy that stops it, or None if nobody can follow it any more: that is a failure.
        """
        job = self._jobs.get(trial)
        if job is None or job.ended:
            return False
        job.stopped, job.stopped_by = True, by
        if job in self._queue:
            self._queue.remove(job)
            self._end(job, _stopped(job))
            await self._notify()
        return True

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until every submitted trial has ended; False if that takes longer than `timeout_s`.

        Trials that were told to stop and have not got there by then end with what is known of them.
        """
        idle = await self._wait_for(lambda: all(job.ended for job in self._jobs.values()), timeout_s)
        for job in self._jobs.values():
            if not job.ended and job.stopped:
                self._end(job, _stopped(job))
        return idle

    async def close(self) -> None:
        """Let every gang go home, and keep nothing that they still say: the sweep has ended, or another takes it on."""
        self._closing = True
        await self._notify()

    # For the gangs.

    async def hello(self, gang: int, workers: list[dict[str, Any]]) -> int:
        """A gang has (re)started with `workers`; returns the token of this incarnation."""
        state = self._gangs[gang]
        state.token += 1
        state.last_update_at = None
        self._release(state, f"gang {gang} restarted")
        if not self._closing:
            self._write("gang_started", gang=gang, workers=workers)
        await self._notify()
        return state.token

    async def take(self, gang: int, token: int, timeout_s: float) -> dict[str, Any] | None:
        """The next trial for a gang as ``{"trial", "spec"}``, ``{"close": True}``, or None after `timeout_s`."""
        state = self._gangs[gang]
        await self._wait_for(lambda: self._closing or bool(self._queue) or state.token != token, timeout_s)
        if self._closing:
            return {"close": True}
        if state.token != token or not self._queue:
            return None
        state.job = self._queue.popleft()
        state.job.attempts += 1
        state.trials_taken += 1
        return {"trial": state.job.trial, "spec": state.job.spec}

    async def report(self, gang: int, token: int, trial: str, evaluation: dict[str, Any]) -> bool:
        """Keep an evaluation; returns whether the trial should stop."""
        job = self._job_of(gang, token, trial)
        if job is None or job.ended or self._closing:
            return True
        if evaluation["samples_seen"] not in job.evaluations:
            self._write("evaluation", trial=trial, **evaluation)
            if self._lost:
                return True
            job.evaluations[evaluation["samples_seen"]] = evaluation
            job.messages.put_nowait(evaluation)
        return job.stopped

    async def finish(self, gang: int, token: int, trial: str, outcome: dict[str, Any]) -> None:
        """A trial has ended; its gang is free."""
        job = self._job_of(gang, token, trial)
        if job is None:
            return
        state = self._gangs[gang]
        turnaround = None
        if state.last_update_at is not None and outcome["first_update_at"] is not None:
            turnaround = outcome["first_update_at"] - state.last_update_at
        state.job = None
        state.last_update_at = outcome["last_update_at"]
        if not job.ended and not self._closing:
            self._end(job, outcome, turnaround)
        await self._notify()

    async def gang_failed(self, gang: int, reason: str, seen_trials: int) -> bool:
        """A gang's run has failed for good. Returns whether to start it again: only if it took a trial meanwhile.

        That cannot go on for ever, because every trial is handed out `MAX_ATTEMPTS` times at most; and a gang that
        broke on trials alone must not end the sweep of those that would train.
        """
        state = self._gangs[gang]
        state.token += 1
        if not self._closing:
            self._write("gang_lost", gang=gang, reason=reason)
        worked = state.trials_taken > seen_trials
        if not worked and not self._closing:
            state.dead = reason
        self._release(state, reason)
        if broken := self._broken():
            while self._queue:
                self._end(self._queue.popleft(), _failed("no gang is left", broken))
        await self._notify()
        return worked and not self._closing

    async def status(self) -> dict[str, Any]:
        """For the driver: trials taken by gang, and why no trial can be trained any more, if so."""
        return {"trials_taken": [gang.trials_taken for gang in self._gangs], "broken": self._broken()}

    async def closing(self) -> bool:
        """Whether the sweep is over."""
        return self._closing

    def _write(self, event: str, **fields: Any) -> None:
        """Into the journal. If that refuses, every trial ends here and now: nobody may wait for a message for ever."""
        try:
            self._journal.append(event, **fields)
        except (TypeError, ValueError):  # what is wrong with this one event is for its sender
            raise
        except Exception as error:  # noqa: BLE001  whatever a journal raises, it is not written
            self._lost, self._closing = str(error), True
            self._queue.clear()
            for job in self._jobs.values():
                if not job.ended:
                    self._tell(job, _failed("no record can be kept", self._lost), None)

    def _broken(self) -> str | None:
        if self._lost:
            return self._lost
        reasons = [gang.dead for gang in self._gangs]
        return reasons[0] if all(reasons) else None

    def _job_of(self, gang: int, token: int, trial: str) -> _Job | None:
        state = self._gangs[gang]
        if state.token != token or state.job is None or state.job.trial != trial:
            return None
        return state.job

    def _release(self, state: _Gang, reason: str) -> None:
        """Take a broken gang's trial away: back to the front of the queue, or failed if it breaks gang after gang."""
        job, state.job = state.job, None
        if job is None or job.ended:
            return
        if job.attempts >= MAX_ATTEMPTS:
            self._end(job, _failed(f"its gang broke {job.attempts} times", reason))
        elif job.stopped:
            self._end(job, _stopped(job))
        elif not self._closing:
            self._queue.appendleft(job)

    def _end(self, job: _Job, outcome: dict[str, Any], turnaround_s: float | None = None) -> None:
        if job.stopped and job.stopped_by is None:
            outcome = {**outcome, "status": "failed", "reason": "its Tune trial was lost"}
        elif job.stopped and outcome["status"] != "stopped":
            reason = f"stopped by {job.stopped_by}, then {outcome['reason'] or outcome['status']}"
            outcome = {**outcome, "status": "stopped", "reason": reason}
        try:
            value = self._record_end(job, outcome, turnaround_s)
        except (TypeError, ValueError) as error:  # a number that is not finite, say: the trial fails, not its gang
            outcome = _failed("its outcome cannot be recorded", str(error))
            value = self._record_end(job, outcome, None)
        if not job.ended:
            self._tell(job, outcome, value)

    def _record_end(self, job: _Job, outcome: dict[str, Any], turnaround_s: float | None) -> Any:
        evaluations = [job.evaluations[samples] for samples in sorted(job.evaluations)]
        value = self._score(evaluations, outcome)
        self._write(
            "trial_ended",
            trial=job.trial,
            status=outcome["status"],
            stopped_by=job.stopped_by if outcome["status"] == "stopped" else None,
            reason=outcome["reason"],
            value=value,
            outcome=outcome,
            turnaround_s=turnaround_s,
        )
        return value

    def _tell(self, job: _Job, outcome: dict[str, Any], value: Any) -> None:
        job.ended = True
        job.messages.put_nowait({"outcome": outcome, "value": value, "over": self._broken() is not None})

    async def _wait_for(self, condition: Any, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        async with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                try:
                    await asyncio.wait_for(self._changed.wait(), left)
                except TimeoutError:
                    return bool(condition())
            return True

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class MailboxActor(Mailbox):
    """The mailbox where it runs as an actor: it opens the journal there. It is here, not with the pool, because its
    process imports this module, and should not import torch for that."""

    def __init__(self, open_journal: Callable[[], Journal], score: Score, gangs: int) -> None:
        super().__init__(open_journal(), score, gangs)


def _stopped(job: _Job) -> dict[str, Any]:
    """The outcome of a trial whose gang will not tell it: as of its last evaluation."""
    last = job.evaluations[max(job.evaluations)] if job.evaluations else None
    counts = last or {"samples_seen": 0, "updates": 0, "train_seconds": 0.0}
    return Outcome(
        status="stopped",
        samples_seen=counts["samples_seen"],
        updates=counts["updates"],
        train_seconds=counts["train_seconds"],
    ).to_dict()


def _failed(what: str, reason: str) -> dict[str, Any]:
    outcome = Outcome(status="failed", samples_seen=0, updates=0, train_seconds=0.0)
    return dataclasses.replace(outcome, reason=f"{what}: {reason}").to_dict()
