"""Trains what the planner asks for on warm gangs, follows every run, and stops it where its verdict falls.

It holds nothing that the record does not: another process that reads the same events goes on in the same way.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.cluster.following import Following
from orchestrator.errors import TrialError
from orchestrator.study.planning import StudyPlanner
from orchestrator.study.protocol import Plan, Protocol
from orchestrator.study.settings import WRITTEN, Asked, Trained
from orchestrator.study.trials import BASELINE, STOPPED_BY, Goal, StudyTrial, judge, known_of
from orchestrator.theory.ladder import Result
from orchestrator.theory.ladder_planner import Rival, Verdict

if TYPE_CHECKING:
    from orchestrator.cluster.pool import Pool

MOST_FAILURES = 2
"""Of one run: a run that fails once is trained again, one that fails again has a reason of its own."""

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
        self._trials = list(known)
        self._following = Following(pool)
        self._failures = Counter[tuple[Any, ...]]()

    def run(self) -> Verdict:
        """Train until nothing more is worth it; why that is so.

        Raises:
            TrialError: a run failed again.
            GangError: no gang is left.
            OrchestratorError: the record cannot be written any more.
        """
        plan = self._plan()
        if isinstance(plan, str):
            return Verdict(kind="not reached", reason=plan)
        for note in plan.notes:
            self._note(note)
        planner = StudyPlanner(config=plan.config, count=len(self._protocol.settings))
        known = known_of(self._trials, plan.goal)
        for trial in self._trials:
            if trial.status == "running" and trial.trial not in self._following.trials:
                self._go_on(trial, plan.goal)
        while True:
            running = [
                Asked(setting=one.setting, run=one.run, rival=one.rival, phase=one.phase) for one in self._under_way()
            ]
            found = planner.next_jobs(known, running, self._pool.size - len(running))
            if isinstance(found, Verdict):
                return found
            for job in found:
                self._start(job, plan.goal)
            known += self._next_results(plan.goal)

    def _plan(self) -> Plan | str:
        """Train the baseline run, or what is left of it."""
        goal = self._protocol.goal
        while True:
            earlier = [one for one in self._trials if one.phase == BASELINE and one.status != "failed"]
            if earlier and earlier[-1].status == "running" and (goal is None or earlier[-1].result(goal) is None):
                self._go_on(earlier[-1], goal)
            else:
                run = self._protocol.baseline(earlier)
                if run is None:
                    return self._protocol.plan(earlier)
                self._start(Asked(setting=WRITTEN, run=run, rival=Rival(), phase=BASELINE), goal)
            while self._following.trials and not self._next_results(goal):
                pass

    def _under_way(self) -> list[StudyTrial]:
        asked = set(self._following.trials)
        return [one for one in self._trials if one.trial in asked]

    def _start(self, job: Asked, goal: Goal | None) -> None:
        trial = StudyTrial(
            trial=f"t{len(self._trials):04d}",
            run=job.run,
            rival=job.rival,
            phase=job.phase,
            setting=job.setting,
            values=self._protocol.settings[job.setting],
        )
        self._trials.append(trial)
        self._submit(trial, goal)
        self._ask(trial)

    def _go_on(self, trial: StudyTrial, goal: Goal | None) -> None:
        """Attach to a trial that an earlier process left: it goes on from its checkpoint, or ends if all is known."""
        self._submit(trial, goal)
        result = None if goal is None else trial.result(goal)
        if result is not None:
            self._stop(trial, result)
        else:
            trial.evaluations.clear()  # they are told again
            self._ask(trial)

    def _submit(self, trial: StudyTrial, goal: Goal | None) -> None:
        spec = self._protocol.trial_spec(trial.run, goal, trial.setting)
        self._following.submit(trial.trial, spec, trial.info())

    def _ask(self, trial: StudyTrial) -> None:
        self._following.ask(trial.trial, trial.evaluations)

    def _next_results(self, goal: Goal | None) -> list[Trained]:
        """Wait for news of some run; the results of those that are decided by it."""
        found, trials = [], {one.trial: one for one in self._trials}
        for name, message in self._following.news():
            trial = trials[name]
            result = self._take(trial, message, goal)
            if result is not None:
                found.append(Trained(setting=trial.setting, result=result, phase=trial.phase))
        return found

    def _take(self, trial: StudyTrial, message: Mapping[str, Any], goal: Goal | None) -> Result | None:
        if "over" in message:
            trial.outcome, trial.status = message["outcome"], message["outcome"]["status"]
            self._check_failure(trial)
            return None if goal is None else trial.result(goal)
        trial.evaluations.append(message)
        if goal is None or goal.metric not in message["metrics"]:
            self._ask(trial)
            return None
        curve = trial.curve(goal.metric)
        ended = judge(trial.run, trial.rival, curve, goal)
        if ended is None:
            self._ask(trial)
            return None
        result = Result(run=trial.run, curve=curve, ended=ended)
        self._stop(trial, result)
        return result

    def _stop(self, trial: StudyTrial, result: Result) -> None:
        """What is decided needs no more training; one at its budget ends by itself."""
        policy = STOPPED_BY.get(result.ended)
        if policy is not None:
            self._pool.cancel(trial.trial, policy)
        trial.status = "stopped"

    def _check_failure(self, trial: StudyTrial) -> None:
        if trial.status != "failed":
            return
        key = (*trial.run.key, trial.setting)
        self._failures[key] += 1
        if self._failures[key] >= MOST_FAILURES:
            run = f"batch {trial.run.global_batch}, learning rate {trial.run.lr:g}, seed {trial.run.seed}"
            raise TrialError(f"a run failed {MOST_FAILURES} times ({run}): {trial.outcome['reason']}")
