"""The ladder method: the learning rate of each batch tuned until a target is reached, and the critical batch fitted."""

from __future__ import annotations

from pathlib import Path

from orchestrator.report import study_report
from orchestrator.study.executor import Executor
from orchestrator.study.experiment import Outcome, StudyExperiment, StudyMethod
from orchestrator.study.outcome import ladder_table, metrics_of, outcome_of
from orchestrator.study.protocol import Protocol
from orchestrator.study.trials import trials_of
from orchestrator.theory.ladder_planner import Verdict

Plan = Protocol


def method_of(plan: Protocol) -> StudyMethod:
    """How its results are made and shown."""
    return StudyMethod(
        name="ladder",
        outcome=lambda events, verdict: outcome_of(plan, trials_of(events), verdict),
        metrics=metrics_of,
        table=lambda outcome: ("ladder.parquet", ladder_table(outcome)),
        figures=_figures,
        write=study_report.write,
    )


def carry_out(plan: Protocol, experiment: StudyExperiment) -> Verdict:
    """Train until nothing more is worth it; why that is so. Errors are those of `Executor.run`."""
    known = trials_of(experiment.past.events) if experiment.past else ()
    return Executor(protocol=plan, pool=experiment.pool, known=known, note=experiment.note).run()


def _figures(outcome: Outcome, name: str, folder: Path) -> list[Path]:
    from orchestrator.report.study_figures import write_study_figures

    return write_study_figures(outcome, name, folder)
