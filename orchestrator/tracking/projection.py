"""Events into MLflow: a parent run a sweep, a child run a trial. Doing an event a second time changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial

import yaml

from orchestrator.config.trial import Target, canonical_hash
from orchestrator.tracking.cursor import Cursor, RunState
from orchestrator.tracking.endings import SWEEP_STATUS, TRIAL_STATUS, ending_points, ending_tags
from orchestrator.tracking.events import Event
from orchestrator.tracking.mlflow_client import Connection, Point
from orchestrator.tracking.params import params_of, run_name, sweep_params_of
from orchestrator.tracking.patience import Patience


class Projection:
    """Applies events in the order of the log and notes in `cursor` what it did; points wait until `flush`.

    Args:
        connection: where to.
        persist: repeats a call until it works or is refused for good.
        cursor: what is known from before; changed in place.
        experiment: name of the MLflow experiment.
        sweep_started: the event that described the sweep, if the cursor is past it.
    """

    def __init__(
        self,
        connection: Connection,
        persist: Patience,
        cursor: Cursor,
        *,
        experiment: str,
        sweep_started: Event | None = None,
    ) -> None:
        self._mlflow, self._persist, self._cursor = connection, persist, cursor
        self._experiment = experiment
        self._sweep_started = sweep_started
        self._points: dict[str, list[Point]] = {}

    def apply(self, event: Event) -> None:
        """Send one event; kinds that MLflow has no place for are passed over."""
        kind = event["event"]
        if kind == "evaluation":
            self._evaluation(event)
            return
        handler = {
            "sweep_started": self._on_sweep_started,
            "trial_started": self._on_trial_started,
            "trial_ended": self._on_trial_ended,
            "trial_reused": self._on_trial_reused,
            "artifact": self._on_artifact,
            "sweep_ended": self._on_sweep_ended,
        }.get(kind)
        if handler is not None:
            self.flush()
            handler(event)

    def flush(self) -> None:
        """Send the points that wait."""
        for run_id, points in self._points.items():
            self._persist(f"metrics of run {run_id}", partial(self._mlflow.log, run_id, points=points))
        self._points = {}

    def close_open_runs(self, status: str, at_s: float, *, parent_status: str = "KILLED", reason: str = "") -> None:
        """Close what is still running: trials as KILLED, the sweep as `parent_status`, tagged with `status`."""
        self.flush()
        for run in self._cursor.runs.values():
            if run.open:
                self._end(run.run_id, "KILLED", at_s, {"status": "killed", "reason": reason})
                run.open = False
        if self._cursor.parent_run_id and self._cursor.parent_open:
            self._end(self._cursor.parent_run_id, parent_status, at_s, {"status": status})
            self._cursor.parent_open = False

    def _on_sweep_started(self, event: Event) -> None:
        cursor = self._cursor
        if cursor.parent_run_id is not None:
            self._reopen_parent()
            return
        self._sweep_started = event
        cursor.sweep_id = canonical_hash(event)[:16]
        cursor.experiment_id = self._persist(
            f"experiment {self._experiment!r}", lambda: self._mlflow.experiment(self._experiment)
        )
        tags = {"orchestrator.kind": "sweep", "orchestrator.sweep_id": cursor.sweep_id}
        parent = self._create(event["name"], event["t"], tags)
        if parent is None:
            return
        cursor.parent_run_id, cursor.parent_open = parent, True
        self._persist("params of the sweep", lambda: self._mlflow.log(parent, params=sweep_params_of(event)))
        self._upload(parent, yaml.safe_dump(event["spec"], sort_keys=False, allow_unicode=True), "spec.yaml")
        for name, text in (event.get("task_source") or {}).get("files", {}).items():
            self._upload(parent, text, f"task_source/{name}")

    def _on_trial_started(self, event: Event) -> None:
        cursor, key = self._cursor, event["key"]
        cursor.keys[event["trial"]] = key
        run = cursor.runs.get(key)
        if run is not None:
            self._reopen(run)
            return
        if cursor.parent_run_id is None or cursor.sweep_id is None or self._sweep_started is None:
            return
        tags = {
            "orchestrator.kind": "trial",
            "orchestrator.sweep_id": cursor.sweep_id,
            "orchestrator.trial": event["trial"],
            "orchestrator.trial_key": key,
            "mlflow.parentRunId": cursor.parent_run_id,
            "phase": event["phase"],
        }
        if event.get("repeat_of"):
            tags["repeat_of"] = event["repeat_of"]
        run_id = self._create(run_name(event), event["t"], tags)
        if run_id is None:
            return
        spec = event["spec"]
        cursor.runs[key] = RunState(run_id=run_id, global_batch=spec["plan"]["global_batch"], target=spec.get("target"))
        params = params_of(event, self._sweep_started)
        self._persist(f"params of {event['trial']}", lambda: self._mlflow.log(run_id, params=params))
        self._upload(run_id, json.dumps(spec, indent=1), "spec.json")

    def _evaluation(self, event: Event) -> None:
        run = self._cursor.run_of(event["trial"])
        step = event["samples_seen"]
        # A trial that was started again repeats evaluations: the same by (trial key, samples seen).
        if run is None or step <= run.samples_seen:
            return
        if not run.open:
            self._reopen(run)
        values = {**event["metrics"], "updates": event["updates"], "train_seconds": event["train_seconds"]}
        if run.target and not run.target_reached and run.target["metric"] in values:
            run.target_reached = Target(**run.target).reached(values[run.target["metric"]])
            values |= {"samples_to_target": step} if run.target_reached else {}
        points = [Point(name, float(value), event["t"], step) for name, value in values.items()]
        self._points.setdefault(run.run_id, []).extend(points)
        run.samples_seen = step

    def _on_trial_ended(self, event: Event) -> None:
        run = self._cursor.run_of(event["trial"])
        self._count(event["status"], event)
        if run is None:
            return
        points = ending_points(event, run.global_batch)
        self._persist(
            f"end of {event['trial']}", lambda: self._mlflow.log(run.run_id, points=points, tags=ending_tags(event))
        )
        if event.get("outcome"):
            self._upload(run.run_id, json.dumps(event["outcome"], indent=1), "outcome.json")
        self._persist(
            f"status of {event['trial']}",
            lambda: self._mlflow.end(run.run_id, TRIAL_STATUS[event["status"]], event["t"]),
        )
        run.open = False

    def _on_trial_reused(self, event: Event) -> None:
        self._count("reused", event)
        run = self._cursor.run_of(event["of"])
        if run is None:
            return
        if event["trial"] not in run.reused_by:
            run.reused_by.append(event["trial"])
        tags = {"reused_by": ", ".join(run.reused_by)}
        self._persist(f"reuse of {event['of']}", lambda: self._mlflow.log(run.run_id, tags=tags))

    def _on_artifact(self, event: Event) -> None:
        parent = self._cursor.parent_run_id
        if parent is not None:
            self._persist(
                f"artifact {event['path']}",
                lambda: self._mlflow.log_file(parent, event["path"], event.get("folder", "")),
                upload=True,
            )

    def _on_sweep_ended(self, event: Event) -> None:
        self.close_open_runs(
            event["status"],
            event["t"],
            parent_status=SWEEP_STATUS[event["status"]],
            reason="the sweep ended first",
        )

    def _create(self, name: str, at_s: float, tags: Mapping[str, str]) -> str | None:
        identity = ("orchestrator.sweep_id", "orchestrator.kind", "orchestrator.trial_key")
        known_by = [key for key in identity if key in tags]
        experiment = self._cursor.experiment_id
        if experiment is None:
            return None
        return self._persist(f"run {name!r}", lambda: self._mlflow.run(experiment, name, at_s, tags, known_by))

    def _upload(self, run_id: str, text: str, name: str) -> None:
        self._persist(f"artifact {name}", lambda: self._mlflow.log_text(run_id, text, name), upload=True)

    def _reopen(self, run: RunState) -> None:
        self._reopen_parent()
        if not run.open:
            self._persist(f"reopening run {run.run_id}", lambda: self._mlflow.reopen(run.run_id))
            run.open = True

    def _reopen_parent(self) -> None:
        parent = self._cursor.parent_run_id
        if parent is not None and not self._cursor.parent_open:
            self._persist("reopening the sweep", lambda: self._mlflow.reopen(parent))
            self._cursor.parent_open = True

    def _end(self, run_id: str, status: str, at_s: float, tags: Mapping[str, str]) -> None:
        said = {key: value for key, value in tags.items() if value}
        self._persist(f"tags of run {run_id}", lambda: self._mlflow.log(run_id, tags=said))
        self._persist(f"status of run {run_id}", lambda: self._mlflow.end(run_id, status, at_s))

    def _count(self, status: str, event: Event) -> None:
        """Counts of ended trials, on the parent run; their step is samples seen by all ended trials."""
        cursor = self._cursor
        cursor.counts[status] = cursor.counts.get(status, 0) + 1
        cursor.total_samples += (event.get("outcome") or {}).get("samples_seen", 0)
        parent = cursor.parent_run_id
        if parent is not None:
            point = Point(f"trials/{status}", float(cursor.counts[status]), event["t"], cursor.total_samples)
            self._persist("counts of the sweep", lambda: self._mlflow.log(parent, points=[point]))
