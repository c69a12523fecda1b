"""A probe under way: an experiment without gangs, whose record holds measurements in place of trials."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console as RichConsole

from orchestrator.experiment import Experiment
from orchestrator.probe.outcome import metrics_of, outcome_of, tables_of
from orchestrator.probe.plan import ProbePlan
from orchestrator.report import probe_report
from orchestrator.report.summary import finite_only
from orchestrator.storage import join, write_stream
from orchestrator.tracking.events import read_events

Fields = dict[str, Any]
KEPT = ("schema_version", "name", "status")
LAST = ("mlflow", "warnings")


class ProbeExperiment(Experiment):
    """Use it as an `Experiment`; set `extra` to what is said beside the measurements."""

    gangs_wanted = False

    def __init__(self, *, plan: ProbePlan, **parts: Any) -> None:
        super().__init__(**parts)
        self._plan = plan
        self.extra: Fields = {}
        self._known = {_key(event): event for event in (self.past.events if self.past else ()) if "asked" in event}

    def knows(self, event: str, asked: Mapping[str, Any]) -> bool:
        """Whether this was measured already."""
        return _key({"event": event, "asked": asked}) in self._known

    def once(self, event: str, asked: Mapping[str, Any], measure: Callable[[], Fields]) -> Fields:
        """What was measured under this event and question; measured now, and kept, if it was not yet."""
        known = self._known.get(_key({"event": event, "asked": asked}))
        if known is None:
            known = {"event": event, "asked": dict(asked), **measure()}
            self.pool.append(**known)
            self._known[_key(known)] = known
        return known

    def described(self) -> Fields:
        """That it is a probe."""
        return {"probe": True}

    def summary(self) -> Fields:
        """The probe's summary as of now: a function of the record."""
        base, outcome = super().summary(), self.outcome()
        base["warnings"] = [*base["warnings"], *outcome.pop("warnings")]
        found: Fields = finite_only({name: base[name] for name in KEPT} | outcome | {n: base[n] for n in LAST})
        return found

    def concluded(self) -> Fields:
        """The measurements as metrics."""
        return metrics_of(self.outcome())

    def write_tables(self) -> None:
        """What was timed, and what was held."""
        for name, table in tables_of(self.outcome()).items():
            write_stream(join(self.run_dir.uri, name), functools.partial(pq.write_table, table))

    def drawn(self, folder: Path) -> list[Path]:
        """Speed by micro batch, and memory."""
        from orchestrator.report.probe_figures import write_probe_figures

        return write_probe_figures(self.outcome(), self.spec.name, folder)

    def say(self, out: RichConsole, summary: Mapping[str, Any], run_dir: str) -> None:
        """Tables, verdicts and warnings."""
        probe_report.write(out, summary, run_dir)

    def outcome(self) -> Fields:
        """What is known as of now."""
        found: Fields = finite_only(outcome_of(self._plan, read_events(self.run_dir.events), self.extra))
        return found


def _key(event: Mapping[str, Any]) -> tuple[str, str]:
    return event["event"], repr(sorted(event["asked"].items()))
