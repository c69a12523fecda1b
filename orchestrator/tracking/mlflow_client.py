"""The few MLflow calls that the projection needs, each safe to repeat. Holds no global state and no active run.

Importing MLflow takes seconds, so it happens when a connection is made, in the writer's own process.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.tracking.uri import sqlite_path

_ENDING_TAGS = (
    *("status", "stopped_by", "diverged", "diverged_at_samples", "reason"),
    *("failure/kind", "failure/phase", "failure/rank"),
)


class Point(NamedTuple):
    """One value of a metric; `at_s` is unix time, `step` is in samples."""

    name: str
    value: float
    at_s: float
    step: int


class Connection:
    """One experiment on one server or database. Making it creates the schema of a fresh database."""

    def __init__(self, uri: str) -> None:
        from mlflow.tracking import MlflowClient

        self._uri = uri
        _make_schema(uri)
        self._client: Any = MlflowClient(tracking_uri=uri)

    def find_experiment(self, name: str) -> str | None:
        """The id of the experiment `name`, or None; nothing is made."""
        found = self._client.get_experiment_by_name(name)
        return None if found is None else str(found.experiment_id)

    def experiment(self, name: str) -> str:
        """The id of the experiment `name`, made if it is missing and restored if it was deleted."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return str(self._client.create_experiment(name, artifact_location=self._artifact_folder(name)))
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def answers(self) -> bool:
        """Whether the server answers now."""
        try:
            self._client.search_experiments(max_results=1)
            return True
        except Exception:  # noqa: BLE001 - every store has errors of its own
            return False

    def run(self, experiment_id: str, name: str, at_s: float, tags: Mapping[str, str], known_by: Sequence[str]) -> str:
        """The run with these tags, made if it is missing: a lost answer to an earlier try makes no second run.

        Args:
            known_by: the tags that tell it from all others.
        """
        wanted = " and ".join(f"tags.`{key}` = '{tags[key]}'" for key in known_by)
        found = self._client.search_runs([experiment_id], wanted, max_results=1)
        if found:
            return str(found[0].info.run_id)
        run = self._client.create_run(experiment_id, start_time=_ms(at_s), tags=dict(tags), run_name=name)
        return str(run.info.run_id)

    def running(self, experiment_id: str, tags: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
        """Id and tags of every run with these tags whose status is RUNNING."""
        wanted = " and ".join(["attributes.status = 'RUNNING'", *(f"tags.`{k}` = '{v}'" for k, v in tags.items())])
        found: list[tuple[str, dict[str, str]]] = []
        token = None
        while True:
            page = self._client.search_runs([experiment_id], wanted, page_token=token)
            found += [(str(run.info.run_id), dict(run.data.tags)) for run in page]
            token = page.token
            if not token:
                return found

    def log(
        self,
        run_id: str,
        *,
        params: Mapping[str, str] | None = None,
        points: Sequence[Point] = (),
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Write params, metrics and tags. A point that is there with the same time, step and value is not doubled."""
        from mlflow.entities import Metric, Param, RunTag

        # MLflow's client splits what is over the limits of one request.
        self._client.log_batch(
            run_id,
            metrics=[Metric(point.name, point.value, _ms(point.at_s), point.step) for point in points],
            params=[Param(key, value) for key, value in (params or {}).items()],
            tags=[RunTag(key, value) for key, value in (tags or {}).items()],
        )

    def log_text(self, run_id: str, text: str, name: str) -> None:
        """Write `text` as the artifact `name`."""
        self._client.log_text(run_id, text, name)

    def log_file(self, run_id: str, path: str, folder: str) -> None:
        """Copy a local file into the artifact folder `folder` (empty: the root)."""
        self._client.log_artifact(run_id, path, folder or None)

    def reopen(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Mark a run as running, drop what told how it had ended, and set `tags`."""
        self._client.update_run(run_id, status="RUNNING")
        there = self._client.get_run(run_id).data.tags
        for key in _ENDING_TAGS:
            if key in there:
                self._client.delete_tag(run_id, key)
        self.log(run_id, tags={key: value for key, value in tags.items() if there.get(key) != value})

    def end(self, run_id: str, status: str, at_s: float) -> None:
        """Close a run with MLflow's `status`: FINISHED, FAILED or KILLED."""
        self._client.set_terminated(run_id, status, _ms(at_s))

    def _artifact_folder(self, experiment: str) -> str | None:
        """Beside an SQLite database; a server decides for itself. MLflow's default depends on the current folder."""
        database = sqlite_path(self._uri)
        if database is None:
            return None
        return (Path(database).parent / "mlartifacts" / re.sub(r"[^\w.-]+", "_", experiment)).as_uri()


def _ms(at_s: float) -> int:
    return int(at_s * 1000)


def _make_schema(uri: str) -> None:
    """Make a missing SQLite database whole, beside its place, and then put it there at once.

    MLflow migrates a fresh file in steps without a lock: two sweeps that start together, or one killed meanwhile,
    would leave a database that nothing can open any more.
    """
    from mlflow.tracking import MlflowClient

    path = sqlite_path(uri)
    if path is None or path.exists():
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        made = Path(folder) / path.name
        MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
        with contextlib.suppress(FileExistsError):
            os.link(made, path)
