"""Events into MLflow: a parent run a sweep, a child run a trial. Doing an event a second time changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial

import yaml

from orchestrator.config.trial import Target
from orchestrator.tracking.cursor import Cursor, RunState
from orchestrator.tracking.endings import SWEEP_STATUS, TRIAL_STATUS, ending_points, ending_tags, geometry
from orchestrator.tracking.events import Event
from orchestrator.tracking.mlflow_client import Connection, Point
from orchestrator.tracking.params import described_after, params_of, run_name, shortened, sweep_id_of, sweep_params_of
from orchestrator.tracking.patience import Patience
from orchestrator.tracking.runs import Runs

_WHY_TRIALS_END = {
    "done": "the sweep ended first",
    "failed": "the sweep failed first",
    "interrupted": "the sweep was interrupted",
}


class Projection:
    """Applies events in the order of the log and notes in `cursor` what it did; points wait until `flush`.

    Args:
        connection: where to.
        persist: repeats a call until it works or is refused for good.
        cursor: what is known from before; changed in place.
        experiment: name of the MLflow experiment.
        maker: tags that say who made a run.
        description: what described the sweep, as of the cursor; None if the cursor is before it.
    """

    def __init__(
        self,
        connection: Connection,
        persist: Patience,
        cursor: Cursor,
        *,
        experiment: str,
        maker: Mapping[str, str],
        description: Event | None = None,
    ) -> None:
        self._mlflow, self._persist, self._cursor = connection, persist, cursor
        self._experiment = experiment
        self._description = description
        self._runs = Runs(connection, persist, cursor, maker)
        self._points: dict[str, list[Point]] = {}

    def apply(self, event: Event) -> None:
        """Send one event; kinds that MLflow has no place for are passed over."""
        kind = event["event"]
        if kind == "evaluation":
            self._evaluation(event)
            return
        handler = {
            "sweep_started": self._on_sweep_started,
            "sweep_resumed": self._on_sweep_resumed,
            "trial_started": self._on_trial_started,
            "trial_interrupted": self._on_trial_interrupted,
            "trial_continued": self._on_trial_continued,
            "trial_ended": self._on_trial_ended,
            "trial_reused": self._on_trial_reused,
            "artifact": self._on_artifact,
            "sweep_concluded": self._on_sweep_concluded,
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

    def close_early(self, at_s: float) -> None:
        """Close what is running now, before the rest of the log is sent; see `Runs.close_early`."""
        self.flush()
        self._runs.close_early(at_s)

    def close(self, at_s: float, reason: str) -> None:
        """Close what the log left open."""
        self.flush()
        self._runs.close("killed", at_s, parent_status="KILLED", reason=reason)

    def _on_sweep_started(self, event: Event) -> None:
        cursor = self._cursor
        if cursor.parent_run_id is not None:
            self._runs.reopen_sweep()
            return
        self._description = event
        cursor.sweep_id = sweep_id_of(event)
        cursor.experiment_id = self._persist(
            f"experiment {self._experiment!r}", lambda: self._mlflow.experiment(self._experiment)
        )
        tags = {"orchestrator.kind": "sweep", "orchestrator.sweep_id": cursor.sweep_id}
        if "study" in event:
            tags["study"] = event["study"]
        if "probe" in event:
            tags["probe"] = "true"
        parent = self._runs.create(event["name"], event["t"], tags)
        if parent is None:
            return
        cursor.parent_run_id, cursor.parent_open = parent, True
        self._close_if_hurried(event)
        self._persist("params of the sweep", lambda: self._mlflow.log(parent, params=sweep_params_of(event)))
        self._upload(parent, yaml.safe_dump(event["spec"], sort_keys=False, allow_unicode=True), "spec.yaml")
        for name, text in (event.get("task_source") or {}).get("files", {}).items():
            self._upload(parent, text, f"task_source/{name}")

    def _on_sweep_resumed(self, event: Event) -> None:
        """Another process goes on; what is not as it was stands in tags, since params are written once."""
        cursor, parent = self._cursor, self._cursor.parent_run_id
        self._description = described_after(self._description, event)
        if parent is None:
            return
        cursor.resumed += 1
        self._runs.reopen_sweep()
        changed = (event.get("changed") or {}).items()
        tags = {f"changed/{name}": shortened(f"{before} -> {now}") for name, (before, now) in changed}
        self._tag(parent, "resumption of the sweep", {"resumed": str(cursor.resumed), **tags})
        source = event.get("task_source") or {}
        for name, text in source.get("files", {}).items():
            self._upload(parent, text, f"task_source-{source['hash']}/{name}")

    def _on_trial_interrupted(self, event: Event) -> None:
        run = self._cursor.run_of(event["trial"])
        if run is None:
            return
        run.interrupted += 1
        tags = {"interrupted": str(run.interrupted), "interrupted/reason": shortened(event.get("reason") or "")}
        self._tag(run.run_id, f"interruption of {event['trial']}", tags)

    def _on_trial_continued(self, event: Event) -> None:
        run = self._cursor.run_of(event["trial"])
        if run is None:
            return
        run.continued += 1
        self._runs.reopen(run)
        tags = {"continued": str(run.continued), **geometry(event.get("plan"), run.plan)}
        self._tag(run.run_id, f"continuation of {event['trial']}", tags)

    def _on_trial_started(self, event: Event) -> None:
        cursor, key = self._cursor, event["key"]
        cursor.keys[event["trial"]] = key
        run = cursor.runs.get(key)
        if run is not None:
            self._runs.reopen(run)
            return
        if cursor.parent_run_id is None or cursor.sweep_id is None or self._description is None:
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
        self._runs.reopen_sweep()
        run_id = self._runs.create(run_name(event), event["t"], tags)
        if run_id is None:
            return
        spec = event["spec"]
        plan = spec["plan"]
        cursor.runs[key] = RunState(
            run_id=run_id, global_batch=plan["global_batch"], target=spec.get("target"), plan=dict(plan)
        )
        self._close_if_hurried(event)
        params = params_of(event, self._description)
        self._persist(f"params of {event['trial']}", lambda: self._mlflow.log(run_id, params=params))
        self._upload(run_id, json.dumps(spec, indent=1), "spec.json")

    def _evaluation(self, event: Event) -> None:
        run = self._cursor.run_of(event["trial"])
        step = event["samples_seen"]
        # A trial that was started again repeats evaluations: the same by (trial key, samples seen).
        if run is None or step <= run.samples_seen:
            return
        self._runs.reopen(run)
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
        if not run.open:
            self._runs.reopen(run)
        points = ending_points(event, run.global_batch, run.samples_seen)
        tags = {**ending_tags(event), **geometry((event.get("outcome") or {}).get("plan"), run.plan)}
        self._persist(f"end of {event['trial']}", lambda: self._mlflow.log(run.run_id, points=points, tags=tags))
        if event.get("outcome"):
            self._upload(run.run_id, json.dumps(event["outcome"], indent=1), "outcome.json")
        self._runs.end(run, TRIAL_STATUS[event["status"]], event["t"], event["trial"])

    def _on_trial_reused(self, event: Event) -> None:
        self._count("reused", event)
        run = self._cursor.run_of(event["of"])
        if run is None:
            return
        if event["trial"] not in run.reused_by:
            run.reused_by.append(event["trial"])
        self._tag(run.run_id, f"reuse of {event['of']}", {"reused_by": ", ".join(run.reused_by)})

    def _on_artifact(self, event: Event) -> None:
        parent = self._cursor.parent_run_id
        if parent is not None:
            self._persist(
                f"artifact {event['path']}",
                lambda: self._mlflow.log_file(parent, event["path"], event.get("folder", "")),
                upload=True,
            )

    def _on_sweep_concluded(self, event: Event) -> None:
        """Metrics of the whole run; those of a batch at the step of that batch, which they are drawn against, and those
        of a moment of training at its samples seen."""
        parent, at = self._cursor.parent_run_id, event["t"]
        if parent is None:
            return
        parts = [(event.get("samples_seen", 0), event.get("metrics", {}))]
        parts += [(rung["global_batch"], rung["metrics"]) for rung in event.get("by_batch", ())]
        parts += [(moment["samples_seen"], moment["metrics"]) for moment in event.get("by_samples", ())]
        points = [Point(name, float(value), at, step) for step, metrics in parts for name, value in metrics.items()]
        self._persist("conclusions", lambda: self._mlflow.log(parent, points=points))

    def _on_sweep_ended(self, event: Event) -> None:
        status = event["status"]
        self._runs.close(status, event["t"], parent_status=SWEEP_STATUS[status], reason=_WHY_TRIALS_END.get(status, ""))

    def _close_if_hurried(self, event: Event) -> None:
        if self._runs.hurried:
            self._runs.close_early(event["t"])

    def _tag(self, run_id: str, what: str, tags: Mapping[str, str]) -> None:
        self._persist(what, lambda: self._mlflow.log(run_id, tags=tags))

    def _upload(self, run_id: str, text: str, name: str) -> None:
        self._persist(f"artifact {name}", lambda: self._mlflow.log_text(run_id, text, name), upload=True)

    def _count(self, status: str, event: Event) -> None:
        """Counts of ended trials, on the parent run; their step is samples seen by all ended trials."""
        cursor = self._cursor
        cursor.counts[status] = cursor.counts.get(status, 0) + 1
        cursor.total_samples += (event.get("outcome") or {}).get("samples_seen", 0)
        parent = cursor.parent_run_id
        if parent is not None:
            point = Point(f"trials/{status}", float(cursor.counts[status]), event["t"], cursor.total_samples)
            self._persist("counts of the sweep", lambda: self._mlflow.log(parent, points=[point]))
