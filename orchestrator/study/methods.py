"""The ways to study batches, by name: which spec each takes, how it runs, and what it says at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.config.load import Loaded
from orchestrator.config.scaling_rules import as_scaling
from orchestrator.config.short_rules import as_branch, as_scan
from orchestrator.config.study_rules import as_study
from orchestrator.errors import CheckFailed

if TYPE_CHECKING:
    from orchestrator.past import Past
    from orchestrator.preparation import Prepared
    from orchestrator.report.console import Console
    from orchestrator.study.experiment import StudyExperiment, StudyMethod
    from orchestrator.study.spec_as_study import SpecAsStudy
    from orchestrator.tracking.run_dir import RunDir

LADDER = "ladder"
METHODS = {
    LADDER: "tune the learning rate of each batch of a ladder until a target is reached",
    "branch": "branches at several batches off checkpoints of one run",
    "scan": "a few hundred updates at each batch",
    "scaling": "do the global batches of more workers still train as well",
}
FREE = {
    LADDER: ("study.width", "study.precision", "study.least_seeds", "study.most_seeds", "study.total_samples"),
    "branch": ("study.branch.floor", "study.branch.tolerance"),
    "scaling": ("study.scaling.seeds",),
}
"""What a study may be taken on with, beside what never changes what trials compute: how sure it is, how it is read."""


def as_spec(method: str, loaded: Loaded, *, file: str) -> Loaded:
    """The spec as the method trains it.

    Raises:
        ConfigError: it cannot be that.
    """
    takers: dict[str, Callable[..., Loaded]] = {
        LADDER: as_study,
        "branch": as_branch,
        "scan": as_scan,
        "scaling": as_scaling,
    }
    return takers[method](loaded, file=file)


def of_run(folder: str) -> str:
    """The method of the study in a run directory; that of the ladder where there is none to be found."""
    from orchestrator.tracking.events import read_events
    from orchestrator.tracking.run_dir import RunDir, holds_run

    if not holds_run(folder):
        return LADDER
    events = read_events(RunDir(folder, taken_on=True).events)
    found = next((event.get("study") for event in events if event["event"] == "sweep_started"), None)
    return found if found in METHODS else LADDER


def writer(method: str) -> Callable[..., None]:
    """What writes the last words: ``(console, summary, run directory)``."""
    from orchestrator.report import branch_report, scaling_report, scan_report, study_report

    return {
        LADDER: study_report.write,
        "branch": branch_report.write,
        "scan": scan_report.write,
        "scaling": scaling_report.write,
    }[method]


class Method(Protocol):
    """What the module of a method has; `plan` is always one of its own `Plan`."""

    @property
    def Plan(self) -> Callable[..., SpecAsStudy]:
        """Sees a spec as its study."""

    def method_of(self, plan: Any) -> StudyMethod:
        """How its results are made and shown."""

    def carry_out(self, plan: Any, experiment: StudyExperiment) -> object:
        """Train everything; why the study is over, in the words of the method."""


def plan_of(method: str, prepared: Prepared) -> SpecAsStudy:
    """What the study trains; its method ``check`` refuses what is known to give no answer.

    A run that is taken on keeps the trials that it was started with, and is as sure as is asked for now.
    """
    started = prepared.as_started or prepared.spec
    return _module(method).Plan(
        spec=started.model_copy(update={"study": prepared.spec.study}),
        metric_modes=prepared.facts.metric_modes,
        train_samples=prepared.facts.train_samples,
    )


def carry_out(
    method: str, prepared: Prepared, run_dir: RunDir, *, past: Past | None = None, overrides: Sequence[str] = ()
) -> None:
    """Carry a prepared study out into its run directory.

    Raises:
        TrialError, GangError, OrchestratorError: a run failed again, no gang is left, or the record cannot be written.
        CheckFailed: all is done and told, and what the method checks did not hold.
    """
    from orchestrator.study.experiment import StudyExperiment
    from orchestrator.tracking.uri import make_folder

    module, plan = _module(method), plan_of(method, prepared)
    make_folder(prepared.tracking_uri)
    parts = prepared.experiment("study", run_dir, past, overrides)
    with StudyExperiment(method=module.method_of(plan), **parts) as experiment:
        experiment.verdict = module.carry_out(plan, experiment)
        experiment.finish()
        summary = experiment.summary()
    _check(summary)


def say_again(method: str, console: Console, summary: dict[str, Any], uri: str) -> None:
    """The last words of a study that is done.

    Raises:
        CheckFailed: as `carry_out`.
    """
    console.finish(summary, uri, writer(method))
    _check(summary)


def _check(summary: Mapping[str, Any]) -> None:
    if reason := summary.get("broken"):
        raise CheckFailed(reason)


def _module(method: str) -> Method:
    from orchestrator.study import branch, ladder, scaling, scan

    modules: dict[str, Method] = {LADDER: ladder, "branch": branch, "scan": scan, "scaling": scaling}
    return modules[method]
