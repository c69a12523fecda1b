"""The post office between trials and gangs: who waits, who trains what, what was reported, who should stop.

Plain asyncio, no Ray in here: the driver runs it as an async actor, tests run it in an event loop. It writes the
sweep's journal, so a report is durable before it is acknowledged.
"""

from __future__ import annotations

import asyncio
import collections
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.cluster.jobs import Job, Known, failed_outcome, stopped_outcome

MAX_BREAKS = 3
# Failures that a fresh start may well not meet again; a trial that meets them time after time has them from itself.
RETRIED = frozenset({"LoaderDied"})


class Journal(Protocol):
    """Where events are kept; `append` returns once the event is durable."""

    def append(self, event: str, **fields: Any) -> Any:
        """Write one event."""


class Score(Protocol):
    """The objective's value of a finished trial, from its evaluations; None if it has none."""

    def __call__(self, evaluations: list[dict[str, Any]], outcome: dict[str, Any]) -> Any:
        """Value, or list of values."""


@dataclass
class _Gang:
    token: int = 0
    job: Job | None = None
    up: bool = False  # whether its present workers have said hello
    nodes: frozenset[str] = frozenset()
    placement: str | None = None
    last_update_at: float | None = None
    trials_taken: int = 0
    taken_before: int | None = None  # by earlier incarnations; None before the first one
    may_warm_up: bool = True
    leaving: str = ""  # why it should go home before its next trial
    hurry: bool = False  # and before its present trial is done
    hung: dict[int, tuple[bool, str]] = field(default_factory=dict)
    dead: str | None = None


class Mailbox:
    """Hands trials to gangs in order, carries their evaluations back, and keeps the journal.

    A trial is known by its id. A gang is known by its index and the token of its present incarnation; what an earlier
    incarnation still says is ignored. A trial whose gang breaks is handed out again, until it has broken `MAX_BREAKS`
    of them; evaluations that it repeats are recognised by their samples seen. A trial that was told to stop counts as
    stopped, whatever its gang still does with it before it hears of that: the search has been told so. A trial that
    cannot go on for a reason that is not its own has no end in the journal: whoever takes the sweep on trains it.
    When the journal cannot be written any more the sweep is over, for what is not durable did not happen.

    Args:
        known: what an earlier process recorded of trials that have not ended, by id.
    """

    def __init__(self, journal: Journal, score: Score, gangs: int, known: Mapping[str, Known] | None = None) -> None:
        self._journal = journal
        self._score = score
        self._gangs = [_Gang() for _ in range(gangs)]
        self._known = dict(known or {})
        self._jobs: dict[str, Job] = {}
        self._queue: collections.deque[Job] = collections.deque()
        self._changed = asyncio.Condition()
        self._closing = False
        self._lost: str | None = None

    async def append(self, event: str, fields: dict[str, Any]) -> None:
        """Write an event of the driver's into the journal."""
        self._journal.append(event, **fields)

    # For the side that searches.

    async def submit(self, trial: str, spec: dict[str, Any], info: dict[str, Any]) -> None:
        """Queue a trial. `info` is what its ``trial_started`` event says beside id and spec.

        A trial that is queued already is left alone: Tune starts a new actor for a trial, gives the trial to another
        that has become free meanwhile, and the new one begins with the same trial when it is up at last.
        """
        if trial in self._jobs:
            return
        job = Job(trial, spec, info)
        if before := self._known.get(trial):
            job.evaluations = {e["samples_seen"]: dict(e) for e in before.evaluations}
            job.breaks, job.again = before.breaks, "the sweep was taken on"
        elif not self._closing:
            self._write("trial_started", trial=trial, spec=spec, **info)
        self._jobs[trial] = job
        if reason := self._broken() or (self._closing and "the sweep is over"):
            self._interrupt(job, reason)
        else:
            self._queue.append(job)
        await self._notify()

    async def next_message(self, trial: str, after: int = -1) -> dict[str, Any]:
        """The trial's first evaluation past `after` samples. Waits for it; asking again gives the same answer.

        At its end: ``{"outcome", "value", "over"}``, or ``{"interrupted", "over"}`` if it has none and another process
        will take it on. ``over`` says that no further trial can be trained.
        """
        return await self._jobs[trial].after(after)

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
            self._end(job, stopped_outcome(job))
            await self._notify()
        return True

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until every submitted trial has ended; False if that takes longer than `timeout_s`.

        Trials that were told to stop and have not got there by then end with what is known of them.
        """
        idle = await self._wait_for(lambda: all(job.ended for job in self._jobs.values()), timeout_s)
        for job in self._jobs.values():
            if not job.ended and job.stopped:
                self._end(job, stopped_outcome(job))
        return idle

    async def close(self) -> None:
        """Let every gang stop what it is at and go home, and keep nothing that they still say: the sweep has ended, or
        another process takes it on."""
        self._closing = True
        await self._notify()

    # For the gangs.

    async def hello(self, gang: int, workers: list[dict[str, Any]]) -> int:
        """A gang has (re)started with `workers`; returns the token of this incarnation."""
        state = self._gangs[gang]
        self._release(state, f"a worker of gang {gang} died")
        state.token += 1
        state.up = True
        state.may_warm_up, state.taken_before = state.trials_taken != state.taken_before, state.trials_taken
        state.nodes = frozenset(worker["node_id"] for worker in workers if "node_id" in worker)
        state.placement = next((worker.get("placement") for worker in workers), None)
        state.last_update_at, state.leaving, state.hurry, state.dead = None, "", False, None
        if not self._closing:
            self._write("gang_started", gang=gang, workers=workers)
        await self._notify()
        return state.token

    async def may_warm_up(self, gang: int) -> bool:
        """Whether a gang that has just said hello should try the model first: not if its last incarnation broke before
        it took a trial, perhaps by that."""
        return self._gangs[gang].may_warm_up

    async def take(self, gang: int, token: int, timeout_s: float) -> dict[str, Any] | None:
        """The next trial for a gang as ``{"trial", "spec", "again"}``, ``{"close": True}``, or None after `timeout_s`.

        ``again`` says why a trial that was begun before is handed out; it may have a checkpoint.
        """
        state = self._gangs[gang]
        await self._wait_for(
            lambda: self._closing or bool(self._queue) or state.token != token or bool(state.leaving), timeout_s
        )
        if self._closing or (state.token == token and state.leaving):
            state.up = state.up and state.token != token
            return {"close": True}
        if state.token != token or not self._queue:
            return None
        job = state.job = self._queue.popleft()
        state.trials_taken += 1
        return {"trial": job.trial, "spec": job.spec, "again": job.again}

    async def order(self, gang: int, token: int, timeout_s: float) -> bool | None:
        """Whether to stop the trial at hand where it is; waits for that order at most `timeout_s`. None: go away."""
        state = self._gangs[gang]
        await self._wait_for(lambda: self._closing or state.token != token or state.hurry, timeout_s)
        return None if state.token != token else self._closing or state.hurry

    async def continued(self, gang: int, token: int, trial: str, from_samples: int, plan: dict[str, Any]) -> None:
        """A gang goes on with a trial that was begun before, from its checkpoint (or from 0), split by `plan`."""
        if (job := self._job_of(gang, token, trial)) and not self._closing:
            self._write("trial_continued", trial=trial, from_samples=from_samples, plan=plan, reason=job.again)

    async def report(self, gang: int, token: int, trial: str, evaluation: dict[str, Any]) -> bool:
        """Keep an evaluation; returns whether the trial should stop."""
        job = self._job_of(gang, token, trial)
        if job is None or job.ended or self._closing:
            return True
        if evaluation["samples_seen"] not in job.evaluations:
            self._write("evaluation", trial=trial, **evaluation)
            if self._lost:
                return True
            job.add(evaluation)
        return job.stopped

    async def finish(self, gang: int, token: int, trial: str, outcome: dict[str, Any]) -> None:
        """A trial has ended, or was stopped where it is by an order; its gang is free."""
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
            if outcome["status"] == "stopped" and not job.stopped:
                self._hand_out_again(job, state.leaving or "it was stopped on request")
            elif not job.stopped and (outcome.get("failure") or {}).get("kind") in RETRIED:
                self._count_break(job, outcome["reason"])
            else:
                self._end(job, outcome, turnaround)
        await self._notify()

    async def hung(self, gang: int, token: int, rank: int, waits: bool, where: str) -> None:
        """A rank made no progress for too long and dies; `waits` if it only waited for the others."""
        state = self._gangs[gang]
        if state.token == token:
            state.hung[rank] = (waits, where)

    # For those who look after gangs.

    async def preempt(self, node_ids: list[str]) -> None:
        """Nodes are about to go: gangs there stop where they are and go home."""
        for state in self._gangs:
            if state.nodes & set(node_ids) and not state.hurry:
                state.leaving, state.hurry = "its node is about to be taken away", True
        await self._notify()

    async def regroup(self, gang: int) -> bool:
        """A gang should go home before its next trial: there is room for more workers. False if it is not up."""
        state = self._gangs[gang]
        if state.up:
            state.leaving = "there is room for more workers"
            await self._notify()
        return state.up

    async def gang_failed(self, gang: int, reason: str) -> str | None:
        """A gang's run has failed; another may be started in its place. Returns the placement group that it had."""
        state = self._gangs[gang]
        if not self._closing:
            self._write("gang_lost", gang=gang, reason=reason)
        self._release(state, reason)
        state.token += 1
        state.up = False
        await self._notify()
        return state.placement

    async def give_up(self, gang: int, reason: str) -> None:
        """A gang will not be started any more."""
        self._gangs[gang].dead = reason
        if broken := self._broken():
            while self._queue:
                self._interrupt(self._queue.popleft(), broken)
        await self._notify()

    async def status(self) -> dict[str, Any]:
        """For the driver: trials taken by gang, why no trial can be trained any more, and why no record kept, if so."""
        taken = [gang.trials_taken for gang in self._gangs]
        return {"trials_taken": taken, "broken": self._broken(), "lost": self._lost}

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
                    self._interrupt(job, self._lost)

    def _broken(self) -> str | None:
        if self._lost:
            return self._lost
        reasons = [gang.dead for gang in self._gangs]
        return reasons[0] if all(reasons) else None

    def _job_of(self, gang: int, token: int, trial: str) -> Job | None:
        state = self._gangs[gang]
        if state.token != token or state.job is None or state.job.trial != trial:
            return None
        return state.job

    def _release(self, state: _Gang, reason: str) -> None:
        """Take a broken gang's trial away."""
        job, state.job = state.job, None
        hangs = sorted((waits, rank, where) for rank, (waits, where) in state.hung.items())
        state.hung = {}
        if job is None or job.ended or self._closing:
            return
        if hangs:
            reason = f"rank {hangs[0][1]} {hangs[0][2]}"
        self._count_break(job, reason)

    def _count_break(self, job: Job, reason: str) -> None:
        """A trial broke its gang: back to the front of the queue, or failed if it breaks gang after gang."""
        job.breaks += 1
        if job.stopped:
            self._end(job, stopped_outcome(job))
        elif job.breaks >= MAX_BREAKS:
            self._end(job, failed_outcome(f"its gang broke {job.breaks} times", reason))
        else:
            self._hand_out_again(job, reason)

    def _hand_out_again(self, job: Job, reason: str) -> None:
        self._write("trial_interrupted", trial=job.trial, reason=reason, breaks=job.breaks)
        job.again = reason
        if not job.ended:
            self._queue.appendleft(job)

    def _interrupt(self, job: Job, reason: str) -> None:
        """Let a trial's follower go; the trial has no end, and is left to whoever takes the sweep on."""
        job.close({"interrupted": reason, "over": True})

    def _end(self, job: Job, outcome: dict[str, Any], turnaround_s: float | None = None) -> None:
        if job.stopped and job.stopped_by is None:
            outcome = {**outcome, "status": "failed", "reason": "its Tune trial was lost"}
        elif job.stopped and outcome["status"] != "stopped":
            reason = f"stopped by {job.stopped_by}, then {outcome['reason'] or outcome['status']}"
            outcome = {**outcome, "status": "stopped", "reason": reason}
        try:
            value = self._record_end(job, outcome, turnaround_s)
        except (TypeError, ValueError) as error:  # a number that is not finite, say: the trial fails, not its gang
            outcome = failed_outcome("its outcome cannot be recorded", str(error))
            value = self._record_end(job, outcome, None)
        if not job.ended:
            job.close({"outcome": outcome, "value": value, "over": self._broken() is not None})

    def _record_end(self, job: Job, outcome: dict[str, Any], turnaround_s: float | None) -> Any:
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

    async def _wait_for(self, condition: Any, timeout_s: float = math.inf) -> bool:
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

    def __init__(
        self,
        open_journal: Callable[[], Journal],
        score: Score,
        gangs: int,
        known: Mapping[str, Known] | None = None,
    ) -> None:
        super().__init__(open_journal(), score, gangs, known)
