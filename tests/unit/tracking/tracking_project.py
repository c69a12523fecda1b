"""A project's MLflow database, and what tests ask of it."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.tracking.orders import Orders
from orchestrator.tracking.writer import Job, Writer

if TYPE_CHECKING:
    from mlflow.entities import Run


class Project:
    def __init__(self, database: Path) -> None:
        from mlflow.tracking import MlflowClient

        self.database = database
        self.uri = f"sqlite:///{database}"
        self.client = MlflowClient(tracking_uri=self.uri)

    def send(self, log_path: Path, *, within_s: float = math.inf) -> bool:
        """Everything in the log, in this process."""
        return self.writer(log_path, within_s=within_s).run()

    def writer(self, log_path: Path, *, within_s: float = math.inf) -> Writer:
        """A writer of a log that is complete."""
        orders = Orders()
        orders.complete.set()
        orders.stop_within(within_s)
        return Writer(Job(path=str(log_path), uri=self.uri, experiment="digits"), orders)

    def runs(self, where: str = "") -> list[Run]:
        experiment = self.client.get_experiment_by_name("digits")
        return list(self.client.search_runs([experiment.experiment_id], where)) if experiment else []

    def trials(self) -> dict[str, Run]:
        """Trial runs by trial id."""
        found = self.runs("tags.`orchestrator.kind` = 'trial'")
        by_trial = {run.data.tags["orchestrator.trial"]: run for run in found}
        assert len(by_trial) == len(found), "a trial has two runs"
        return by_trial

    def parent(self) -> Run:
        (run,) = self.runs("tags.`orchestrator.kind` = 'sweep'")
        return run

    def steps(self, run: Run, metric: str) -> list[int]:
        return [point.step for point in self.client.get_metric_history(run.info.run_id, metric)]

    def artifacts(self, run: Run, folder: str | None = None) -> set[str]:
        names: set[str] = set()
        for file in self.client.list_artifacts(run.info.run_id, folder):
            names |= self.artifacts(run, file.path) if file.is_dir else {file.path}
        return names

    def artifact_text(self, run: Run, name: str) -> str:
        return Path(self.client.download_artifacts(run.info.run_id, name)).read_text()

    def rows(self, query: str) -> list[Any]:
        connection = sqlite3.connect(self.database)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()
