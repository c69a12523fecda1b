"""The training loop: one trial, on every rank of a gang together.

Whatever goes wrong on one rank travels in the next reduction, so all ranks end the trial at the same place.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from orchestrator.config.trial import TrialSpec
from orchestrator.theory.schedules import crossed
from orchestrator.training.evaluate import bad_metric
from orchestrator.training.failures import Guard, describe
from orchestrator.training.group import Group
from orchestrator.training.memory import reset_peak
from orchestrator.training.optimizer import step
from orchestrator.training.progress import Ending, Progress
from orchestrator.training.rate import learning_rate
from orchestrator.training.records import Evaluation, Failure, Outcome
from orchestrator.training.reducer import Share, Totals
from orchestrator.training.seeding import isolated
from orchestrator.training.setup import Parts, prepare
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
) -> Outcome:
    """Train one trial. Called on every rank of `group` together, trial after trial in one process.

    Args:
        spec: equal on all ranks.
        task: built from ``spec.task`` on each rank.
        on_evaluation: called on rank 0 with each evaluation; True stops the trial at its next update.
        stop_requested: asked before each update, on whichever ranks give it; True on any stops the trial as well.

    Returns:
        The outcome, with the same status and failure on all ranks. What goes wrong inside the trial (the task's
        exceptions, no memory, a non-finite loss) is told there and leaves the group usable. Only an error of the
        collectives themselves is raised.
    """
    with isolated(group.device):
        reset_peak(group.device)
        parts = prepare(spec, task, group)
        if isinstance(parts, Failure):
            reason = describe(parts)
            return Outcome(status="failed", samples_seen=0, updates=0, train_seconds=0.0, reason=reason, failure=parts)
        try:
            return Trial(spec, parts, group, on_evaluation, stop_requested).run()
        finally:
            parts.reducer.close()


class Trial:
    """One trial on one rank."""

    def __init__(
        self,
        spec: TrialSpec,
        parts: Parts,
        group: Group,
        on_evaluation: OnEvaluation,
        stop_requested: Callable[[], bool] | None,
    ) -> None:
        self.spec, self.parts, self.group, self.progress = spec, parts, group, Progress()
        self._on_evaluation, self._stop_requested = on_evaluation, stop_requested or (lambda: False)
        self._stop = False
        self._failure: Failure | None = None  # of this rank, and unknown to the others until the next reduction

    def run(self) -> Outcome:
        """Update after update, until the budget is spent or something ends the trial."""
        spec, parts, progress = self.spec, self.parts, self.progress
        progress.window.start_clock()
        ending = None
        while ending is None:
            before = progress.samples_seen
            share = accumulate(spec, parts, self.group, before, failure=self._failure, stop=self._stopping())
            self._failure = share.failure
            totals = parts.reducer.reduce(share)
            ending = self._verdict(totals) or self._update(totals, share)
            if ending is None:
                progress.samples_seen = after = before + spec.plan.global_batch
                done = after >= spec.budget_samples
                if done or crossed(before, after, spec.eval_every_samples):
                    progress.window.stop_clock()
                    ending = self._evaluate() or (Ending("completed") if done else None)
                    progress.window.start_clock()
        progress.window.stop_clock()
        return progress.outcome(ending, self._failure, parts, self.group)

    def _stopping(self) -> bool:
        return self._stop or self._stop_requested()

    def _verdict(self, totals: Totals) -> Ending | None:
        """Whether the trial ends before this update touches the weights."""
        if totals.errors:
            return Ending("failed")
        if totals.stops:
            return Ending("stopped", f"stopped on request after {self.progress.samples_seen} samples")
        if not math.isfinite(totals.loss):
            return self.progress.diverged("the training loss")
        return None

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
        if not self.parts.scaler.collapsed:
            return None
        reason = (
            f"the loss scale fell below 1 after {self.progress.samples_seen} samples: gradients overflow fp16 unscaled"
        )
        return Ending("failed", reason, Failure(rank=0, phase="update", kind="LossScaleCollapse", message=reason))

    def _evaluate(self) -> Ending | None:
        spec, progress = self.spec, self.progress
        metrics, self._failure, failed = self.parts.evaluator.run(self._failure)
        if failed:
            return Ending("failed")
        if bad_metric(metrics):
            return progress.diverged("val/loss")
        metrics |= progress.window.shared() | {"lr": progress.lr, "updates": progress.updates}
        if self.group.rank == 0:
            with Guard(0, "evaluation") as guard:
                self._stop = bool(self._on_evaluation(progress.evaluation(metrics, self.parts, self.group)))
            self._failure = guard.failure
        progress.window.clear()
        target = spec.target
        if target and spec.stop_at_target and target.reached(metrics.get(target.metric, math.nan)):
            reached = f"{target.metric} = {metrics[target.metric]:.6g} after {progress.samples_seen} samples"
            return Ending("target_reached", reached)
        return None
