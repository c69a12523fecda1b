"""Trains what the planner asks for on warm gangs, follows every run, and stops it where its verdict falls.

It holds nothing that the record does not: another process that reads the same events goes on in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from orchestrator.config.study_section import LEAST_BATCHES
from orchestrator.errors import TrialError
from orchestrator.study.lost import lost_batches, reason_of, without
from orchestrator.study.planning import StudyPlanner
from orchestrator.study.protocol import Plan, Protocol
from orchestrator.study.runs import Runs, given_up
from orchestrator.study.settings import WRITTEN, Asked, Trained
from orchestrator.study.trials import BASELINE, STOPPED_BY, Goal, StudyTrial, judge, known_of
from orchestrator.theory.ladder import LadderConfig, Result
from orchestrator.theory.ladder_planner import Rival, Verdict

if TYPE_CHECKING:
    from orchestrator.cluster.pool import Pool

LEFT_OUT = "left out"
"""What stops the runs of a batch of which another run failed again."""

logger = logging.getLogger(__name__)


class Executor:
    """Carries a study out.

    Args:
        protocol: the study.
        pool: the gangs.
        known: trials of an earlier process, as its record tells them.
        note: told how target and ladder were arrived at.
    """

    def __init__(
        self,
        *,
        protocol: Protocol,
        pool: Pool,
        known: Iterable[StudyTrial] = (),
        note: Callable[[str], None] = logger.info,
    ) -> None:
        self._protocol, self._pool, self._note = protocol, pool, note
        self._lost: dict[int, str] = {}
        self._runs: Runs[StudyTrial] = Runs(pool, known)

    def run(self) -> Verdict:
        """Train until nothing more is worth it; why that is so.

        Raises:
            TrialError: the baseline run failed again, or too few batches are left whose runs do not.
            GangError: no gang is left.
            OrchestratorError: the record cannot be written any more.
        """
        plan = self._plan()
        if isinstance(plan, str):
            return Verdict(kind="not reached", reason=plan)
        for note in plan.notes:
            self._note(note)
        known = known_of(self._runs.all, plan.goal)
        for trial in self._runs.all:
            if trial.status == "running" and trial not in self._runs.under_way:
                self._go_on(trial, plan.goal)
        while True:
            planner = StudyPlanner(config=self._of_the_rest(plan), count=len(self._protocol.settings))
            running = [
                Asked(setting=one.setting, run=one.run, rival=one.rival, phase=one.phase)
                for one in self._runs.under_way
                if one.run.global_batch not in self._lost
            ]
            rest = [one for one in known if one.result.run.global_batch not in self._lost]
            found = planner.next_jobs(rest, running, self._pool.size - len(self._runs.under_way))
            if isinstance(found, Verdict):
                return found
            for job in found:
                self._start(job, plan.goal)
            known += self._next_results(plan.goal)

    def _of_the_rest(self, plan: Plan) -> LadderConfig:
        """The study without the batches that cannot be trained; says so when one is lost, and stops its runs."""
        for batch, reason in lost_batches(self._runs.of_now, plan.goal).items():
            if batch in self._lost:
                continue
            self._lost[batch] = reason
            if len(plan.config.batches) - len(self._lost) < LEAST_BATCHES:
                raise TrialError(f"{reason}; that leaves fewer than {LEAST_BATCHES} batches")
            self._note(f"batch {batch} is left out: {reason}")
            for one in self._runs.under_way:
                if one.run.global_batch == batch:
                    self._pool.cancel(one.trial, LEFT_OUT)
        return without(plan.config, self._lost, self._runs.all)

    def _plan(self) -> Plan | str:
        """Train the baseline run, or what is left of it."""
        goal = self._protocol.goal
        while True:
            earlier = [one for one in self._runs.all if one.phase == BASELINE and one.status != "failed"]
            if earlier and earlier[-1].status == "running" and (goal is None or earlier[-1].result(goal) is None):
                self._go_on(earlier[-1], goal)
            else:
                run = self._protocol.baseline(earlier)
                if run is None:
                    return self._protocol.plan(earlier)
                self._start(Asked(setting=WRITTEN, run=run, rival=Rival(), phase=BASELINE), goal)
            while self._runs.under_way and not self._next_results(goal):
                pass
            runs = [one for one in self._runs.of_now if one.phase == BASELINE]
            for one in given_up(runs, lambda one: one.run.key):
                raise TrialError(reason_of(one))

    def _start(self, job: Asked, goal: Goal | None) -> None:
        trial = StudyTrial(
            trial=self._runs.next_id,
            run=job.run,
            rival=job.rival,
            phase=job.phase,
            setting=job.setting,
            values=self._protocol.settings[job.setting],
        )
        self._submit(trial, goal)
        self._runs.ask(trial)

    def _go_on(self, trial: StudyTrial, goal: Goal | None) -> None:
        """Attach to a trial that an earlier process left: it goes on from its checkpoint, or ends if all is known."""
        self._submit(trial, goal)
        result = None if goal is None else trial.result(goal)
        if result is not None:
            self._stop(trial, result)
        else:
            trial.evaluations.clear()  # they are told again
            self._runs.ask(trial)

    def _submit(self, trial: StudyTrial, goal: Goal | None) -> None:
        spec = self._protocol.trial_spec(trial.run, goal, trial.setting)
        self._runs.submit(trial, spec, trial.info())

    def _next_results(self, goal: Goal | None) -> list[Trained]:
        """Wait for news of some run; the results of those that are decided by it."""
        found = []
        for trial in self._runs.news():
            result = self._judged(trial, goal)
            if result is not None:
                found.append(Trained(setting=trial.setting, result=result, phase=trial.phase))
        return found

    def _judged(self, trial: StudyTrial, goal: Goal | None) -> Result | None:
        if trial.status != "running":
            return None if goal is None else trial.result(goal)
        if goal is not None and goal.metric in trial.evaluations[-1]["metrics"]:
            curve = trial.curve(goal.metric)
            ended = judge(trial.run, trial.rival, curve, goal)
            if ended is not None:
                result = Result(run=trial.run, curve=curve, ended=ended)
                self._stop(trial, result)
                return result
        self._runs.ask(trial)
        return None

    def _stop(self, trial: StudyTrial, result: Result) -> None:
        """What is decided needs no more training; one at its budget ends by itself."""
        policy = STOPPED_BY.get(result.ended)
        if policy is not None:
            self._pool.cancel(trial.trial, policy)
        trial.status = "stopped"
