"""An experiment under way: gangs, record, tracking and console, started together and taken down together.

Entry points that train trials (the sweep, and what comes after it) share this; what they search and report is theirs.
One whose results are of another kind overrides `described`, `concluded`, `drawn`, `summary`, `write_tables` and `say`;
one that trains no trials sets `gangs_wanted` to False.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psutil
from rich.console import Console as RichConsole

from orchestrator.cluster.capacity import accelerators, count_gangs
from orchestrator.cluster.session import Session, connect
from orchestrator.config.spec import SweepSpec
from orchestrator.config.trial import TrialSpec
from orchestrator.errors import OrchestratorError
from orchestrator.past import Past
from orchestrator.report import final_report
from orchestrator.report.console import Console, Report
from orchestrator.report.quiet import quiet
from orchestrator.report.summary import SCHEMA_VERSION, build_summary
from orchestrator.search.objective import Objective
from orchestrator.signals import Interrupts
from orchestrator.storage import join
from orchestrator.tracking.events import Event, EventLog, read_events
from orchestrator.tracking.follow import Follower
from orchestrator.tracking.results import write_results
from orchestrator.tracking.run_dir import SPEC, RunDir
from orchestrator.tracking.software import cpu_name, software_versions
from orchestrator.tracking.task_source import task_source
from orchestrator.tracking.tracker import Tracker

if TYPE_CHECKING:
    from orchestrator.cluster.pool import Pool

IDLE_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 60.0
HURRIED_DRAIN_S = 5.0
TABLES_SHARE = 0.1  # of the follower's time: each writing of the tables reads the whole record again

logger = logging.getLogger(__name__)


class Experiment:
    """Everything that runs while trials are trained. Use it as a context manager.

    Args:
        spec: the resolved spec.
        facts: what is known of the task, as ``sweep_started`` tells it.
        objective: scores finished trials.
        warm_up: a trial that workers try briefly when they start.
        run_dir: where results go.
        tracking_uri: as `tracking.uri.check_uri` gave it.
        warnings: for people.
        file: the spec's file, for messages.
        modules: the task's modules, which workers must import.
        resume_command: what takes the run on if it is cut.
        past: what an earlier process left in `run_dir`; None for a new run.
    """

    gangs_wanted = True

    def __init__(
        self,
        *,
        spec: SweepSpec,
        facts: Mapping[str, Any],
        objective: Objective,
        warm_up: TrialSpec,
        run_dir: RunDir,
        tracking_uri: str,
        warnings: Sequence[str],
        file: str,
        modules: Sequence[str],
        resume_command: str,
        past: Past | None = None,
    ) -> None:
        self.spec, self.facts, self.objective, self.run_dir = spec, facts, objective, run_dir
        self._warm_up, self._uri, self._warnings = warm_up, tracking_uri, list(warnings)
        self._file, self._modules = file, modules
        self._resume_command, self.past = resume_command, past
        self._interrupts = Interrupts()
        self._name = spec.tracking.experiment or spec.name
        self._scratch = Path(tempfile.mkdtemp(prefix="orchestrator-ray-"))
        self._stack = ExitStack()
        self._status = "failed"
        self._lost: Exception | None = None
        self._hurried = False  # Ctrl-C was pressed while the run ended
        self.session: Session
        self.pool: Pool
        self._tracker: Tracker | None = None
        self._tracker_lock = threading.Lock()
        self._tables_due_at = 0.0
        self._console: Console
        self._follower: Follower

    @property
    def scratch(self) -> Path:
        """A folder for what Ray writes and nobody reads again."""
        return self._scratch

    def __enter__(self) -> Self:
        self._interrupts.install()
        with ExitStack() as stack:
            stack.callback(self._interrupts.uninstall)
            stack.callback(shutil.rmtree, self._scratch, ignore_errors=True)
            self._console = stack.enter_context(Console(sys.stdout))
            for warning in self._warnings:
                self._console.note(f"warning: {warning}")
            if self.past is None:
                self.run_dir.write(SPEC, self.spec.to_yaml())
            stack.enter_context(quiet(self.run_dir.local / "ray.log"))
            # Ray Train takes seconds to import, and Ray's own processes seconds to start: both at once.
            threading.Thread(target=importlib.import_module, args=("orchestrator.cluster.pool",), daemon=True).start()
            self.session = stack.enter_context(connect(self._modules))
            self._interrupts.install()
            self.pool = stack.enter_context(self._make_pool())
            if self.past is None:
                self.pool.append("sweep_started", **self._beginning())
            else:
                self.pool.append("sweep_resumed", **self._going_on(self.past))
            listeners: list[Callable[[Event], None]] = [self._console, self._tables, self._track]
            self._follower = stack.enter_context(Follower(self.run_dir.events, listeners))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._status = "failed" if issubclass(kind, Exception) else "interrupted"
            self.pool.in_a_hurry = True
        if isinstance(error, Exception):
            self._warnings.append(_told(error))
        with self._stack:
            self._end()
        if self._hurried and kind is None:
            raise KeyboardInterrupt

    def finish(self) -> None:
        """All trials were suggested: wait for those that were stopped to reach their next evaluation."""
        self.pool.wait_until_idle(IDLE_TIMEOUT_S)
        self._status = "done"

    def summary(self) -> dict[str, Any]:
        """The summary as of now."""
        return build_summary(
            read_events(self.run_dir.events),
            process_started_at=psutil.Process(os.getpid()).create_time(),
            mlflow={
                "tracking_uri": self._uri,
                "experiment": self._name,
                "parent_run_id": self._tracker and self._tracker.parent_run_id,
            },
            warnings=self._warnings,
        )

    def described(self) -> dict[str, Any]:
        """What ``sweep_started`` says beside the spec and the surroundings."""
        return {}

    def concluded(self) -> dict[str, Any]:
        """Metrics of the whole run by name, and at which step, for its MLflow run; empty for none."""
        return {}

    def drawn(self, folder: Path) -> Iterable[Path]:
        """Figures, written into `folder`."""
        from orchestrator.report.figures import write_figures

        return write_figures(read_events(self.run_dir.events), folder)

    def write_tables(self) -> None:
        """The Parquet tables, as of now."""
        write_results(read_events(self.run_dir.events), self.run_dir.uri)

    def say(self, out: RichConsole, summary: Mapping[str, Any], run_dir: str) -> None:
        """The last words; the last line is `run_dir`."""
        final_report.write(out, summary, run_dir)

    def note(self, text: str) -> None:
        """Say a sentence while trials run."""
        self._console.note(text)

    def _end(self) -> None:
        """Write what there is, whatever happened; send it to MLflow; say the last word."""
        if self._status != "done":
            self._console.note(f"{self._status}; what is done is safe. Take it on with: {self._resume_command}")
        with self._surviving():
            self.pool.send_home()
        with self._surviving():
            self._conclude()
        with self._surviving():
            self.pool.append("sweep_ended", status=self._status)
        with self._surviving():
            self._follower.close()
        self._drain()
        with self._surviving():
            self.write_tables()
        self._write_summary()
        if self._lost is not None:
            raise OrchestratorError(
                f"{_told(self._lost)}; take the run on with: {self._resume_command}"
            ) from self._lost

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        """What cannot be done any more must not keep from the rest; the first such error is told at the end.

        That holds for errors of our own making too: what was trained must reach the summary, with the reason.
        Somebody who presses Ctrl-C while a run ends gets what can be had at once.
        """
        try:
            yield
        except KeyboardInterrupt:
            self._hurried = self.pool.in_a_hurry = True
        except Exception as error:
            logger.exception("while ending")
            self._warnings += [text for text in (_told(error),) if text not in self._warnings]
            self._lost, self._status = self._lost or error, "failed"

    def _write_summary(self) -> None:
        """Of as much as can be told: all, what holds for every experiment, or why there is nothing else."""
        summary: dict[str, Any] = {}
        say: Report = final_report.write_reasons
        with self._surviving():
            summary, say = self.summary(), self.say
        if not summary:
            with self._surviving():
                summary = Experiment.summary(self)
        if not summary:
            summary = {"schema_version": SCHEMA_VERSION, "name": self.spec.name, "warnings": self._warnings}
        summary["status"] = self._status
        if self._lost is not None:
            summary["warnings"] = list(dict.fromkeys([*summary["warnings"], _told(self._lost)]))
        with self._surviving():
            self._stack.callback(self._console.finish, summary, self.run_dir.uri, say)
            self.run_dir.write_json("summary.json", summary)
            self.run_dir.publish()

    def _drain(self) -> None:
        """Give the MLflow writer time for the rest, and less of it to people who pressed Ctrl-C."""
        in_a_hurry = self._hurried or self._status == "interrupted"
        if in_a_hurry and self._tracker is None:
            return
        with self._surviving():
            tracker = self._tracking()
            try:
                left = tracker.close(HURRIED_DRAIN_S if in_a_hurry else DRAIN_TIMEOUT_S)
            except KeyboardInterrupt:
                self._hurried = self.pool.in_a_hurry = True
                left = tracker.close(HURRIED_DRAIN_S)
            if not left.nothing:
                self._warnings.append(str(left))

    def _conclude(self) -> None:
        """Tell what was found and draw it, before the record says that the run is done."""
        if self._status != "done" or self._hurried:
            return
        if found := self.concluded():
            self.pool.append("sweep_concluded", **found)
        for figure in self.drawn(self.run_dir.local / "figures"):
            self.pool.append("artifact", path=str(figure), folder="figures")

    def _make_pool(self) -> Pool:
        from orchestrator.cluster.gang import GangShape
        from orchestrator.cluster.pool import Pool
        from orchestrator.cluster.worker import WorkerSettings

        cluster, keep = self.spec.cluster, self.spec.checkpoint
        per_worker = {"CPU": cluster.cpus_per_worker, "GPU": cluster.gpus_per_worker}
        shape = GangShape(
            workers=cluster.workers,
            per_worker={k: v for k, v in per_worker.items() if v > 0},
            fewest=min(cluster.min_workers, cluster.workers),
            wait_s=cluster.wait_s,
        )
        gangs = count_gangs(
            self.session.nodes,
            workers=cluster.workers,
            per_worker=shape.per_worker,
            asked=None if cluster.gangs == "auto" else cluster.gangs,
            trials=self.spec.search.trials,
            file=self._file,
        )
        return Pool(
            session=self.session,
            shape=shape,
            gangs=gangs if self.gangs_wanted else 0,
            settings=WorkerSettings(
                gang=0,
                threads=cluster.threads,
                deterministic=cluster.deterministic,
                one_trial=cluster.isolation == "fresh",
                import_paths=tuple(os.path.abspath(path) for path in sys.path),
                warm_up=self._warm_up.to_dict(),
                hang_timeout_s=cluster.hang_timeout_s,
                checkpoints=None if keep.every_s is None else join(self.run_dir.uri, "checkpoints"),
                every_s=keep.every_s or 0.0,
                keep_last=keep.keep_last,
                keep_best=keep.keep_best,
                metric=self.objective.metric,
                mode=self.objective.mode,
            ),
            open_journal=functools.partial(EventLog, self.run_dir.events, self.run_dir.mirror_uri),
            score=self.objective.score,
            storage=str(self._scratch),
            known=self.past.known() if self.past else None,
        )

    def _beginning(self) -> dict[str, Any]:
        files, digest = task_source(self._modules[0])
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.spec.name,
            "spec": self.spec.to_dict(),
            "facts": dict(self.facts),
            "task_source": {"hash": digest, "files": files},
            **self.described(),
            **self._surroundings(),
        }

    def _going_on(self, past: Past) -> dict[str, Any]:
        """What runs on, and what is not as it was when the run started."""
        now = self._surroundings()
        pairs = [
            (f"{part}/{name}", value, now[part].get(name))
            for part in ("software", "hardware")
            for name, value in past.started[part].items()
        ]
        cluster, was = self.spec.to_dict()["cluster"], past.started["spec"]["cluster"]
        pairs += [(f"cluster/{name}", was[name], cluster[name]) for name in ("threads", "deterministic")]
        files, digest = task_source(self._modules[0])
        pairs.append(("task_source", past.started["task_source"]["hash"], digest))
        changed = {name: [before, after] for name, before, after in pairs if before != after}
        for name, (before, after) in changed.items():
            self._console.note(f"warning: {name} was {before} when the run started, and is {after} now")
        source = {"hash": digest, "files": files if "task_source" in changed else {}}
        return {**now, "cluster": cluster, "task_source": source, "changed": changed}

    def _surroundings(self) -> dict[str, Any]:
        cluster = self.spec.cluster
        return {
            "software": software_versions(Path.cwd()),
            "hardware": {
                "device": accelerators(self.session.nodes) if cluster.gpus_per_worker else cpu_name(),
                "count": cluster.workers,
                "nodes": len(self.session.nodes),
            },
        }

    def _track(self, event: Event) -> None:
        """Start the MLflow writer when the workers are up: its import and schema would only delay them."""
        if event["event"] == "gang_started":
            self._tracking()

    def _tracking(self) -> Tracker:
        with self._tracker_lock:
            if self._tracker is None:
                self._tracker = Tracker(self.run_dir.events, uri=self._uri, experiment=self._name)
            return self._tracker

    def _tables(self, event: Event) -> None:
        started_at = time.monotonic()
        if event["event"] == "trial_ended" and started_at >= self._tables_due_at:
            self.write_tables()
            ended_at = time.monotonic()
            self._tables_due_at = ended_at + (ended_at - started_at) / TABLES_SHARE


def _told(error: Exception) -> str:
    """An error of ours is a sentence; anybody else's needs its kind, as a KeyError is only a key."""
    return str(error) if isinstance(error, OrchestratorError | OSError) else f"{type(error).__name__}: {error}"
