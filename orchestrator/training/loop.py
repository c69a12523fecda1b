"""The training loop: one trial, on every rank of a gang together.

Whatever goes wrong on one rank travels in the next reduction, so all ranks end the trial at the same place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from orchestrator.config.trial import TrialSpec
from orchestrator.theory.batch_plan import replan
from orchestrator.theory.schedules import crossed
from orchestrator.training.checkpoint import Checkpoints
from orchestrator.training.checkpointer import Checkpointer, pick, resume
from orchestrator.training.evaluate import bad_metric
from orchestrator.training.failures import Guard, describe, unfit
from orchestrator.training.group import Group
from orchestrator.training.memory import reset_peak
from orchestrator.training.optimizer import step
from orchestrator.training.parts import Parts
from orchestrator.training.progress import Ending, Progress, changed_split
from orchestrator.training.rate import learning_rate
from orchestrator.training.records import Evaluation, Failure, Outcome
from orchestrator.training.reducer import Share, Totals
from orchestrator.training.seeding import isolated
from orchestrator.training.setup import prepare, split_again
from orchestrator.training.step import accumulate
from orchestrator.training.task import Task

OnEvaluation = Callable[[Evaluation], bool]


def run_trial(
    spec: TrialSpec,
    task: Task,
    group: Group,
    on_evaluation: OnEvaluation,
    *,
    stop_requested: Callable[[], bool] | None = None,
    checkpoints: Checkpoints | None = None,
    beat: Callable[[], None] | None = None,
) -> Outcome:
    """Train one trial. Called on every rank of `group` together, trial after trial in one process.

    Args:
        spec: equal on all ranks.
        task: built from ``spec.task`` on each rank.
        on_evaluation: called on rank 0 with each evaluation; True stops the trial at its next update.
        stop_requested: asked before each update, on whichever ranks give it; True on any stops the trial after that
            update, with a checkpoint.
        checkpoints: where and when, equal on all ranks. If there is a whole one, the trial goes on from the newest at
            the exact next sample, whatever the plan was then: only the split of the global batch may differ.
        beat: called on every rank for each micro batch and each evaluation batch: a sign of life.

    Returns:
        The outcome, with the same status and failure on all ranks. What goes wrong inside the trial (the task's
        exceptions, no memory, a non-finite loss) is told there and leaves the group usable. Only an error of the
        collectives themselves is raised.
    """
    with isolated(group.device):
        reset_peak(group.device)
        state = pick(checkpoints, spec, group)
        if isinstance(state, Failure):
            return _not_begun(state)
        branch = state is not None and state["trajectory"] != spec.trajectory
        progress = Progress(state["progress"] if state and not branch else None, begins_at=spec.begins_at)
        parts = prepare(spec, task, group, samples_seen=progress.samples_seen, beat=beat)
        if isinstance(parts, Failure):
            return _not_begun(parts)
        checkpointer = Checkpointer(checkpoints, group)
        try:
            failure = resume(state, parts, group, branch=branch) if state else None
            if failure:
                return _not_begun(failure)
            return Trial(spec, parts, group, progress, checkpointer, on_evaluation, stop_requested).run()
        finally:
            checkpointer.close()
            parts.drop_reducer()


def _not_begun(failure: Failure) -> Outcome:
    reason = describe(failure)
    return Outcome(status="failed", samples_seen=0, updates=0, train_seconds=0.0, reason=reason, failure=failure)


class Trial:
    """One trial on one rank."""

    def __init__(
        self,
        spec: TrialSpec,
        parts: Parts,
        group: Group,
        progress: Progress,
        checkpointer: Checkpointer,
        on_evaluation: OnEvaluation,
        stop_requested: Callable[[], bool] | None,
    ) -> None:
        self.spec, self.parts, self.group = spec, parts, group
        self.progress, self.checkpointer = progress, checkpointer
        self._on_evaluation, self._stop_requested = on_evaluation, stop_requested or (lambda: False)
        self._given = spec.plan
        self._stop = self._pause = False
        self._failure: Failure | None = None  # of this rank, and unknown to the others until the next reduction

    def run(self) -> Outcome:
        """Update after update, until the budget is spent or something ends the trial."""
        parts, progress = self.parts, self.progress
        ending = Ending("completed") if progress.samples_seen >= self.spec.budget_samples else None
        if (self.spec.eval_growth or self.spec.start) and progress.samples_seen == self.spec.begins_at:
            ending = self._evaluate(save=False)
        progress.window.start_clock()
        while ending is None:
            before = progress.samples_seen
            self._pause = self._pause or self._stop_requested()
            share = accumulate(
                self.spec, parts, self.group, before, failure=self._failure, stop=self._stop, pause=self._pause
            )
            self._failure = share.failure
            totals = parts.reducer.reduce(share)
            if totals.errors and totals.errors == totals.too_big:
                ending = self._split_smaller()
                continue
            ending = self._verdict(totals) or self._update(totals, share)
            if ending is None:
                progress.samples_seen = after = before + self.spec.plan.global_batch
                done = after >= self.spec.budget_samples
                if done or totals.pauses or self._is_due(before):
                    progress.window.stop_clock()
                    ending = self._boundary(before, done=done, pause=totals.pauses > 0)
                    progress.window.start_clock()
        progress.window.stop_clock()
        self.checkpointer.close()
        notes = self.checkpointer.notes
        return progress.outcome(ending, self._failure, parts, self.group, plan=self.spec.plan, notes=notes)

    def _boundary(self, before: int, *, done: bool, pause: bool) -> Ending | None:
        """Between two updates: evaluate and make a checkpoint, whichever is due, and end if it is time."""
        after, ending = self.progress.samples_seen, None
        if done or self._is_due(before):
            ending = self._evaluate(save=pause or after in self.spec.keep_at)
        else:
            self._save({})
        if ending is None and done:
            return Ending("completed")
        if ending is None and pause:
            return Ending("stopped", f"stopped on request after {after} samples")
        return ending

    def _is_due(self, before: int) -> bool:
        """Whether the update after `before` samples crossed a mark of the evaluation grid, or a checkpoint is asked."""
        spec, after = self.spec, self.progress.samples_seen
        return after in spec.keep_at or crossed(before, after, spec.eval_every_samples, spec.eval_growth)

    def _verdict(self, totals: Totals) -> Ending | None:
        """Whether the trial ends before this update touches the weights."""
        if totals.errors:
            return Ending("failed")
        if totals.stops:
            return Ending("stopped", f"stopped on request after {self.progress.samples_seen} samples")
        if not math.isfinite(totals.loss):
            return self.progress.diverged("the training loss")
        return None

    def _split_smaller(self) -> Ending | None:
        """Some rank had no memory for its micro batch: the same update again in smaller ones, on all ranks."""
        plan = self.spec.plan
        if plan.micro_batch == 1:
            self._failure = self._failure and unfit(self._failure, "micro batch 1")
            return Ending("failed")
        smaller = replan(plan, plan.world_size, micro_batch_max=plan.micro_batch // 2)
        self.spec, self._failure = replace(self.spec, plan=smaller), None
        seen = self.progress.samples_seen
        self.parts.notes += (f"micro batch {plan.micro_batch} did not fit in memory after {seen} samples: {smaller}",)
        failure = split_again(self.spec, self.parts, self.group, seen)
        return Ending("failed", failure=failure) if failure else None

    def _update(self, totals: Totals, share: Share) -> Ending | None:
        """Unscale and average, measure, clip, step: in this order, with one pass over the gradients."""
        spec, parts, progress = self.spec, self.parts, self.progress
        average = 1.0 / (totals.weight * parts.scaler.scale) if totals.weight else 0.0
        grad_norm = totals.grad_norm * average
        if totals.weight and not math.isfinite(grad_norm) and not parts.scaler.dynamic:
            return progress.diverged("the gradient")
        progress.window.add(totals, share, spec.plan.global_batch, grad_norm if totals.weight else None)
        if not totals.weight:
            progress.skipped += 1
        elif not math.isfinite(grad_norm):
            progress.skipped += 1
            return self._overflow()
        else:
            parts.probe.add(totals, share, grad_norm)
            clip = min(1.0, spec.grad_clip / grad_norm) if spec.grad_clip and grad_norm else 1.0
            lr = learning_rate(spec, progress.samples_seen)
            with Guard(self.group.rank, "update", earlier=self._failure) as guard:
                parts.reducer.rescale(average * clip)
                step(parts.optimizer, lr)
            self._failure = guard.failure
            parts.scaler.succeeded()
            progress.count_update(grad_norm, lr)
        return None

    def _overflow(self) -> Ending | None:
        """An fp16 gradient overflowed: lower the loss scale, or give up where no scale can help."""
        self.parts.scaler.overflowed()
        self.parts.probe.drop()
        if not self.parts.scaler.collapsed:
            return None
        reason = (
            f"the loss scale fell below 1 after {self.progress.samples_seen} samples: gradients overflow fp16 unscaled"
        )
        return Ending("failed", reason, Failure(rank=0, phase="update", kind="LossScaleCollapse", message=reason))

    def _evaluate(self, *, save: bool) -> Ending | None:
        spec, progress, evaluator = self.spec, self.progress, self.parts.evaluator
        batch = evaluator.batch
        metrics, self._failure, failed, due = evaluator.run(self._failure, due=self.checkpointer.due())
        if evaluator.batch < batch:
            self.parts.notes += (f"evaluation batch {batch} did not fit in memory: {evaluator.batch} samples",)
        if failed:
            return Ending("failed")
        if bad_metric(metrics):
            return progress.diverged("val/loss")
        metrics |= progress.window.shared() | {"lr": progress.lr, "updates": progress.updates}
        metrics |= changed_split(self._given, spec.plan)
        if self.group.rank == 0:
            with Guard(0, "evaluation") as guard:
                self._stop = bool(self._on_evaluation(progress.evaluation(metrics, self.parts, self.group)))
            self._failure = guard.failure
        progress.window.clear()
        target = spec.target
        if target and spec.stop_at_target and target.reached(metrics.get(target.metric, math.nan)):
            reached = f"{target.metric} = {metrics[target.metric]:.6g} after {progress.samples_seen} samples"
            return Ending("target_reached", reached)
        if due or save:
            self._save(metrics)
        return None

    def _save(self, metrics: dict[str, float]) -> None:
        """After the evaluation's listener took it: a trial that goes on from here does not tell it again."""
        self.checkpointer.save(
            self.spec, self.parts, self.progress, wanted=not self._stop, failure=self._failure, metrics=metrics
        )
