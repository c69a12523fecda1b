"""A study under way: an experiment whose results are a ladder of batches and what is fitted to it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console as RichConsole

from orchestrator.experiment import Experiment
from orchestrator.report import study_report
from orchestrator.report.summary import finite_only
from orchestrator.storage import join, write_stream
from orchestrator.study.outcome import ladder_table, metrics_of, outcome_of
from orchestrator.study.protocol import Protocol
from orchestrator.study.trials import trials_of
from orchestrator.theory.ladder_planner import Verdict
from orchestrator.tracking.events import read_events

KEPT = ("schema_version", "name", "status", "objective", "counts")
LAST = ("turnaround_s", "first_evaluation_s", "trials", "mlflow", "warnings")


class StudyExperiment(Experiment):
    """Use it as an `Experiment`, with the study's `protocol`; set `verdict` when the study is over."""

    def __init__(self, *, protocol: Protocol, **parts: Any) -> None:
        super().__init__(**parts)
        self._protocol = protocol
        self.verdict: Verdict | None = None

    def described(self) -> dict[str, Any]:
        """That it is a study, and by which method."""
        return {"study": "ladder"}

    def summary(self) -> dict[str, Any]:
        """The study's summary as of now: a function of the record and the verdict."""
        base = super().summary()
        outcome = self._outcome()
        base["warnings"] = [*base["warnings"], *outcome.pop("warnings")]
        found: dict[str, Any] = finite_only({name: base[name] for name in KEPT} | outcome | {n: base[n] for n in LAST})
        return found

    def concluded(self) -> dict[str, Any]:
        """The estimates as metrics."""
        return metrics_of(finite_only(self._outcome()))

    def say(self, out: RichConsole, summary: Mapping[str, Any], run_dir: str) -> None:
        """The ladder, the estimates and the plain sentence."""
        study_report.write(out, summary, run_dir)

    def _outcome(self) -> dict[str, Any]:
        return outcome_of(self._protocol, trials_of(read_events(self.run_dir.events)), self.verdict)

    def write_tables(self) -> None:
        """Those of every experiment, and the ladder."""
        super().write_tables()
        if self.verdict is not None:
            table = ladder_table(finite_only(self._outcome()))
            write_stream(join(self.run_dir.uri, "ladder.parquet"), functools.partial(pq.write_table, table))

    def drawn(self, folder: Path) -> list[Path]:
        """Samples and updates, learning rates, and the noise scale."""
        from orchestrator.report.study_figures import write_study_figures

        return write_study_figures(finite_only(self._outcome()), self.spec.name, folder)
