"""A study under way: an experiment whose results one of the methods makes from its record."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console as RichConsole

from orchestrator.experiment import Experiment
from orchestrator.report.summary import finite_only
from orchestrator.storage import join, write_stream
from orchestrator.tracking.events import Event, read_events

Outcome = Mapping[str, Any]
KEPT = ("schema_version", "name", "status", "objective", "counts")
LAST = ("turnaround_s", "first_evaluation_s", "trials", "mlflow", "warnings")


@dataclass(frozen=True, kw_only=True)
class StudyMethod:
    """What is its own about a method.

    Attributes:
        name: ``ladder``, ``branch``, ``scan`` or ``scaling``.
        outcome: its part of the summary, with ``warnings``, from the record and why the study is over (None: it is
            not). The key ``broken``, if there is one, says why a check that it was asked to make did not hold.
        metrics: those of its MLflow run, as event ``sweep_concluded`` takes them.
        table: its file and a row for each result.
        figures: drawn from the outcome, under a name, into a folder.
        write: the last words.
    """

    name: str
    outcome: Callable[[Sequence[Event], Any], dict[str, Any]]
    metrics: Callable[[Outcome], dict[str, Any]]
    table: Callable[[Outcome], tuple[str, pa.Table]]
    figures: Callable[[Outcome, str, Path], list[Path]]
    write: Callable[[RichConsole, Outcome, str], None]


class StudyExperiment(Experiment):
    """Use it as an `Experiment`; set `verdict`, in the words of its method, when the study is over."""

    def __init__(self, *, method: StudyMethod, **parts: Any) -> None:
        super().__init__(**parts)
        self._method = method
        self.verdict: object = None

    def described(self) -> dict[str, Any]:
        """That it is a study, and by which method."""
        return {"study": self._method.name}

    def summary(self) -> dict[str, Any]:
        """The study's summary as of now: a function of the record and the verdict."""
        base, outcome = super().summary(), self._outcome()
        base["warnings"] = [*base["warnings"], *outcome.pop("warnings")]
        found: dict[str, Any] = finite_only({name: base[name] for name in KEPT} | outcome | {n: base[n] for n in LAST})
        return found

    def concluded(self) -> dict[str, Any]:
        """The estimates as metrics."""
        return self._method.metrics(self._outcome())

    def write_tables(self) -> None:
        """Those of every experiment, and the method's."""
        super().write_tables()
        if self.verdict is not None:
            name, table = self._method.table(self._outcome())
            write_stream(join(self.run_dir.uri, name), functools.partial(pq.write_table, table))

    def drawn(self, folder: Path) -> list[Path]:
        """The method's figures."""
        return self._method.figures(self._outcome(), self.spec.name, folder)

    def say(self, out: RichConsole, summary: Outcome, run_dir: str) -> None:
        """The table, the warnings and the plain sentence."""
        self._method.write(out, summary, run_dir)

    def _outcome(self) -> dict[str, Any]:
        found: dict[str, Any] = finite_only(self._method.outcome(read_events(self.run_dir.events), self.verdict))
        return found
