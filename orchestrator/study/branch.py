"""The branch method: one run with checkpoints, branches at several batches off each, and where learning slows by half.

Source: Merrill et al. 2025, "Critical Batch Size Revisited" (arXiv:2505.23971).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from orchestrator.report import branch_report
from orchestrator.storage import join
from orchestrator.study.branch_outcome import branches_table, metrics_of, noise_of, outcome_of
from orchestrator.study.branch_plan import PARENT, BranchPlan
from orchestrator.study.crew import Crew, Trained, Wanted, trained_of
from orchestrator.study.experiment import Outcome, StudyExperiment, StudyMethod

Plan = BranchPlan


def method_of(plan: BranchPlan) -> StudyMethod:
    """How its results are made and shown."""
    return StudyMethod(
        name="branch",
        outcome=lambda events, done: outcome_of(plan, trained_of(events), done=bool(done)),
        metrics=metrics_of,
        table=_table,
        figures=_figures,
        write=branch_report.write,
    )


def carry_out(plan: BranchPlan, experiment: StudyExperiment) -> bool:
    """Train everything; True: that is all.

    Raises:
        TrialError: the run that is branched from failed again, or all branches did.
        GangError: no gang is left.
    """
    known: Sequence[Trained] = trained_of(experiment.past.events) if experiment.past else ()
    crew = Crew(experiment.pool, known)
    parent = crew.train([Wanted(name=PARENT, spec=plan.parent(), phase="parent")])[PARENT]
    if parent.status != "diverged":
        batches, note = plan.batches(noise_of(parent.evaluations[-1]))
        if note:
            experiment.note(note)
        folder = join(experiment.run_dir.uri, "checkpoints")
        crew.train(plan.branches(batches, join(folder, parent.trial)))
    return True


def _table(outcome: Outcome) -> tuple[str, pa.Table]:
    return "branches.parquet", branches_table(outcome)


def _figures(outcome: Outcome, name: str, folder: Path) -> list[Path]:
    from orchestrator.report.branch_figures import write_branch_figures

    return write_branch_figures(outcome, name, folder)
