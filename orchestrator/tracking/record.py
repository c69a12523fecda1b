"""What MLflow holds of one trial, read back: all that a replay knows of the run that it trains again.

Importing MLflow takes seconds, so it happens when a record is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from orchestrator.config.trial import TrialSpec
from orchestrator.credentials import mask
from orchestrator.errors import TrackingError
from orchestrator.tracking.params import text_of
from orchestrator.tracking.uri import scrub, sqlite_path

History = Mapping[str, Mapping[int, float]]
UNKNOWN = text_of(None)
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A trial's run.

    Args:
        run_id: the run.
        name: as lists of runs show it.
        status: the tag ``status``; ``running`` if the trial has not ended.
        spec: the trial, as nested dicts; credentials in it are masked.
        params: of the run.
        tags: of the run.
        sweep_tags: of the sweep's run; empty if that is gone.
        sweep_spec: the sweep's spec; empty if its run is gone.
        source: texts of the task's source, by path; empty if the sweep's run is gone.
        history: values of each metric by step, in samples.
    """

    run_id: str
    name: str
    status: str
    spec: dict[str, Any]
    params: dict[str, str]
    tags: dict[str, str]
    sweep_tags: dict[str, str]
    sweep_spec: dict[str, Any]
    source: dict[str, str]
    history: History

    @property
    def evaluations(self) -> tuple[int, ...]:
        """Samples seen at each evaluation, in order."""
        return tuple(sorted(self.history.get("updates", {})))

    @property
    def is_whole(self) -> bool:
        """Whether the trial itself came to its end, and not a scheduler, a failure or a kill to it."""
        return self.status in ("completed", "target_reached", "diverged")

    @property
    def other_split(self) -> str | None:
        """How the global batch was split at last, if not as the spec says."""
        changed = sorted(name for name in self.history if name.startswith("geometry/"))
        return self.tags.get("geometry") or (", ".join(changed) or None)

    def param(self, name: str) -> str | None:
        """A param's text; None where the record has nothing to say."""
        value = self.params.get(name, UNKNOWN)
        return None if value == UNKNOWN else value


def read_record(uri: str, run_id: str) -> TrialRecord:
    """The record of the trial whose MLflow run is `run_id`.

    Args:
        uri: as `tracking.uri.check_uri` gave it.

    Raises:
        TrackingError: there is no such database or run, the run is no trial's, or it holds no spec or no evaluation.
    """
    with _mlflow_errors(uri, run_id):
        return _read(_client(uri), run_id)


def trials_of(uri: str, run_id: str) -> list[tuple[str, str, str]]:
    """Run id, name and status of every trial of the sweep whose run is `run_id`, in order; empty for other runs."""
    with _mlflow_errors(uri, run_id):
        client = _client(uri)
        run, token = client.get_run(run_id), None
        found: list[Any] = []
        while run.data.tags.get("orchestrator.kind") == "sweep":
            where = f"tags.`mlflow.parentRunId` = '{run_id}'"
            page = client.search_runs([run.info.experiment_id], where, page_token=token)
            found += page
            token = page.token
            if not token:
                break
        found.sort(key=lambda trial: trial.data.tags.get("orchestrator.trial", ""))
        return [(trial.info.run_id, trial.info.run_name, _status(trial)) for trial in found]


def _client(uri: str) -> Any:
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        remedy = "name the one that the sweep wrote, with --tracking-uri or MLFLOW_TRACKING_URI"
        raise TrackingError("there is no such database", key="--tracking-uri", value=mask(uri), remedy=remedy)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _read(client: Any, run_id: str) -> TrialRecord:
    run = client.get_run(run_id)
    tags = dict(run.data.tags)
    kind = tags.get("orchestrator.kind")
    if kind != "trial":
        rule = f"the run must be a trial's, and this one is {'a' if kind == 'sweep' else 'no'} sweep's"
        remedy = "name one of its trials" if kind == "sweep" else "name a run that this orchestrator made"
        raise TrackingError(rule, key="RUN_ID", value=run_id, remedy=remedy)
    spec = _texts(client, run_id, "spec.json").get("spec.json")
    if spec is None:
        remedy = "name another run, or bring its artifacts back"
        raise TrackingError("the run must hold the artifact spec.json", key="RUN_ID", value=run_id, remedy=remedy)
    history = {
        name: {point.step: point.value for point in client.get_metric_history(run_id, name)}
        for name in run.data.metrics
    }
    if not history.get("updates"):
        remedy = "name a run that was evaluated at least once"
        raise TrackingError("there must be an evaluation to compare with", key="RUN_ID", value=run_id, remedy=remedy)
    sweep_tags, sweep_spec, source = _of_sweep(client, tags, run.data.params.get("task/source_hash", ""))
    return TrialRecord(
        run_id=run_id,
        name=run.info.run_name,
        status=_status(run),
        spec=_parsed(spec, run_id),
        params=dict(run.data.params),
        tags=tags,
        sweep_tags=sweep_tags,
        sweep_spec=sweep_spec,
        source=source,
        history=history,
    )


def _status(run: Any) -> str:
    return str(run.data.tags.get("status", "running"))


def _parsed(spec: str, run_id: str) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = json.loads(spec)
        return parsed
    except ValueError as error:
        rule, remedy = f"the artifact spec.json must be whole ({error})", "name another run, or bring it back"
        raise TrackingError(rule, key="RUN_ID", value=run_id, remedy=remedy) from error


def _of_sweep(
    client: Any, tags: Mapping[str, str], source_hash: str
) -> tuple[dict[str, str], dict[str, Any], dict[str, str]]:
    """Tags and spec of the sweep's run, and the task's source of that hash."""
    from mlflow.exceptions import MlflowException

    sweep = tags.get("mlflow.parentRunId", "")
    try:
        found = dict(client.get_run(sweep).data.tags)
    except MlflowException:
        return {}, {}, {}
    spec = yaml.safe_load(_texts(client, sweep, "spec.yaml").get("spec.yaml", "{}"))
    for folder in (f"task_source-{source_hash}", "task_source"):
        if source := _texts(client, sweep, folder):
            return found, spec, source
    return found, spec, {}


def _texts(client: Any, run_id: str, name: str) -> dict[str, str]:
    """The texts of an artifact, or of all files in a folder, by their path in it; empty if there is none."""
    top, _, _ = name.rpartition("/")
    entry = next((item for item in client.list_artifacts(run_id, top or None) if item.path == name), None)
    if entry is None:
        return {}
    with tempfile.TemporaryDirectory(prefix="orchestrator-record-") as folder:
        path = Path(client.download_artifacts(run_id, name, folder))
        if path.is_file():
            return {PurePosixPath(name).name: path.read_text(encoding="utf-8")}
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return {file.relative_to(path).as_posix(): file.read_text(encoding="utf-8") for file in files}


@contextlib.contextmanager
def _mlflow_errors(uri: str, run_id: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        said = scrub(str(error), uri).strip().splitlines()
        raise TrackingError(
            f"MLflow must have the run ({said[0] if said else type(error).__name__})",
            key="RUN_ID",
            value=run_id,
            remedy="copy the run's id from its page, and check --tracking-uri",
        ) from error


def spec_of(raw: Mapping[str, Any], run_id: str) -> TrialSpec:
    """The trial of a record's spec.

    Raises:
        TrackingError: another version wrote it, and this one does not know its fields.
    """
    try:
        return TrialSpec.from_dict(dict(raw))
    except (TypeError, ValueError) as error:
        raise TrackingError(
            f"the spec of the run must be one that this version can read ({error})",
            key="RUN_ID",
            value=run_id,
            remedy="install the version that software/orchestrator of the run names",
        ) from error
