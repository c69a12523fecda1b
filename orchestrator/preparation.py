"""From a loaded spec to a sweep that may start: the task looked at, everything impossible refused, nothing started."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.auto_micro import with_fitting_micro
from orchestrator.cluster.capacity import Node, count_gangs, workers_on
from orchestrator.cluster.device_memory import device_memory
from orchestrator.cluster.memory import check_memory
from orchestrator.cluster.session import Session, connect, is_local, local_node
from orchestrator.cluster.shared_storage import check_shared
from orchestrator.config.check import Facts, check_spec
from orchestrator.config.check_task import task_options
from orchestrator.config.load import Loaded, source_of, spec_from_dict
from orchestrator.config.reach import Reach
from orchestrator.config.refusal import Refusal
from orchestrator.config.resolve import resolve_trial
from orchestrator.config.space import Parameter
from orchestrator.config.spec import SweepSpec
from orchestrator.config.training_sections import AUTO
from orchestrator.config.trial import TrialSpec
from orchestrator.credentials import hide, mask
from orchestrator.errors import RefusedError, TaskError
from orchestrator.report.objective import Objective as Shown
from orchestrator.report.plan import Candidates, Plan, PlannedBatch
from orchestrator.search.objective import Objective
from orchestrator.theory.schedules import count_evaluations
from orchestrator.tracking.run_dir import RunDir, check_free
from orchestrator.tracking.uri import check_uri
from orchestrator.training.optimizer import check_optimizer
from orchestrator.training.preflight import TaskFacts, check_checkpointed, check_task, model_size
from orchestrator.training.registry import config_of, load_task, module_of, task_class

if TYPE_CHECKING:
    from orchestrator.past import Past

_MOST_BUILT = 16  # models of the space that are built, without their memory, to see whether they fit


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A sweep that nothing known forbids. `baseline` is the spec's own trial, without the space.

    `as_started` is the spec that trials are made from, where it is not `spec`: a sweep that is taken on with other
    workers keeps the trials that it was started with, and the gangs split them anew.
    """

    spec: SweepSpec
    file: str
    facts: TaskFacts
    objective: Objective
    baseline: TrialSpec
    tracking_uri: str
    warnings: tuple[str, ...]
    set_keys: tuple[str, ...]
    largest_bytes: int
    as_started: SweepSpec | None = None

    def experiment(self, entry: str, run_dir: RunDir, past: Past | None, overrides: Sequence[str]) -> dict[str, Any]:
        """The arguments of an `Experiment` that carries this out for the module `entry` of the package, which was given
        `overrides` beside the spec."""
        command = ["python", "-m", f"orchestrator.{entry}", "--resume", run_dir.uri]
        return {
            "spec": self.spec,
            "facts": self.event_facts(),
            "objective": self.objective,
            "warm_up": self.baseline,
            "run_dir": run_dir,
            "tracking_uri": self.tracking_uri,
            "warnings": self.warnings,
            "file": self.file,
            "modules": self.modules,
            "resume_command": shlex.join([*command, *(word for text in overrides for word in ("--set", text))]),
            "past": past,
        }

    def check_resources(self) -> None:
        """Refuse gangs or a model that the machine, or the cluster that is connected to, cannot hold.

        Raises:
            ResourceError: names need and supply.
        """
        spec, nodes = self.spec, _nodes()
        with _source_named(self.file, self.set_keys):
            workers = _gangs(spec, nodes, self.file) * spec.cluster.workers
            # A gang may start on any node that has room, so the roomiest one must hold its part of the workers.
            roomiest = max(nodes, key=lambda node: node.resources.get("memory", math.inf))
            here = min(workers, workers_on(roomiest, _per_worker(spec)))
            check_memory(
                self.largest_bytes,
                spec.optimizer.name,
                roomiest,
                workers=max(1, here),
                task=spec.task.name,
                file=self.file,
            )

    def check_storage(self, out: str, session: Session) -> None:
        """Refuse a run directory that some node which may train does not reach, if trials leave checkpoints there.

        Raises:
            StorageError: names the nodes.
        """
        if self.spec.checkpoint.every_s is not None:
            check_shared(out, session, _per_worker(self.spec))

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules that workers must be able to import."""
        return (module_of(self.spec.task.name),)

    @property
    def largest_batch(self) -> int:
        """The largest global batch that the space can suggest."""
        return int(Reach(self.spec).largest("batch.global"))

    def resolve(self, params: Mapping[str, Any], seed: int | None = None) -> TrialSpec:
        """The trial that a suggestion means."""
        return resolve_trial(self.as_started or self.spec, params, seed=seed, metric_modes=self.facts.metric_modes)

    def event_facts(self) -> dict[str, Any]:
        """What ``sweep_started`` tells of the task."""
        return dataclasses.asdict(self.facts)

    def plan(self, out: str) -> Plan:
        """What a dry run shows."""
        cluster, search, spec = self.spec.cluster, self.spec.search, self.spec
        nodes = _nodes()
        gangs = _gangs(spec, nodes, self.file)
        need = _per_worker(spec)
        repeats = f"; the best {search.repeat_top} under {search.seeds} seeds" if search.seeds > 1 else ""
        return Plan(
            name=spec.name,
            task=spec.task.name,
            objective=Shown.make(spec.to_dict()["objective"], self.facts.metric_modes).describe(),
            search=f"{search.sampler}, early stopping {search.early_stopping}{repeats}",
            candidates=tuple(Candidates(key=key, text=hide(_text(p)), count=p.size) for key, p in spec.space.items()),
            batches=tuple(self._planned(batch) for batch in sorted(set(Reach(spec).values("batch.global")))),
            budget_samples=spec.budget.samples,
            eval_every_samples=spec.budget.eval_every_samples,
            trials=search.trials,
            trials_at_once=gangs,
            gangs=gangs,
            workers_per_gang=cluster.workers,
            needed={name: value * cluster.workers * gangs for name, value in need.items() if value},
            available={name: math.fsum(node.resources.get(name, 0.0) for node in nodes) for name in need},
            output=mask(out),
            tracking_uri=mask(self.tracking_uri),
            warnings=self.warnings,
        )

    def _planned(self, global_batch: int) -> PlannedBatch:
        trial = self.resolve({"batch.global": global_batch})
        evaluations = count_evaluations(global_batch, trial.budget_samples, trial.eval_every_samples)
        return PlannedBatch(plan=trial.plan, updates=trial.updates, evaluations=evaluations)


def prepare(loaded: Loaded, *, file: str, out: str | None = None) -> Prepared:
    """Look at the task and refuse whatever is known to be impossible.

    Args:
        loaded: the spec.
        file: where it came from, for messages.
        out: the run directory to be, if it is known yet.

    Raises:
        RefusedError: names what, why and the remedy; nothing has been started or written.
    """
    with _source_named(file, loaded.set_keys):
        prepared = _prepare(loaded, file)
        if out is not None:
            check_free(out)
        return prepared


@contextlib.contextmanager
def _source_named(file: str, set_keys: Iterable[str]) -> Iterator[None]:
    """A refusal of a key of the spec says whether the file or ``--set`` gave it."""
    try:
        yield
    except RefusedError as error:
        key = error.key or ""
        if error.file in (None, file) and key.partition(".")[0] in SweepSpec.model_fields:
            error.file = source_of(key, file=file, set_keys=set_keys)
        raise


def _prepare(loaded: Loaded, file: str) -> Prepared:
    spec = _with_absolute_paths(loaded.spec, file)
    first, *others = task_options(Reach(spec))
    task = load_task(spec.task.name, first)
    facts = check_task(task)
    checked = Facts(
        train_samples=facts.train_samples,
        val_samples=facts.val_samples,
        metric_modes=facts.metric_modes,
        task_options=tuple(config_of(type(task)).model_fields),
        validate_task=config_of(type(task)).model_validate,
        validate_optimizer=lambda name, options: check_optimizer(name, dict(options)),
    )
    warnings = check_spec(spec, checked, file=file, set_keys=loaded.set_keys)
    for name in filter(None, Reach(spec).values("training.checkpoint_activations")):
        check_checkpointed(task, name)
    metric = spec.objective.metric
    baseline = resolve_trial(spec, _first_values(spec), metric_modes=facts.metric_modes)
    if spec.batch.micro_batch == AUTO:
        spec, told = _with_micro(spec, baseline, [first, *others[:_MOST_BUILT]], facts.train_samples, file)
        baseline = resolve_trial(spec, _first_values(spec), metric_modes=facts.metric_modes)
        warnings = [*warnings, told]
    objective = Objective(
        kind=spec.objective.kind,
        metric=metric,
        mode=facts.metric_modes[metric.removeprefix("val/")],
        target=baseline.target,
    )
    largest_bytes = max([facts.parameter_bytes, *(_parameter_bytes(spec, options) for options in others[:_MOST_BUILT])])
    tracking_uri = check_uri(spec.tracking.uri, Path.cwd(), make=False)
    return Prepared(
        spec=spec,
        file=file,
        facts=facts,
        objective=objective,
        baseline=baseline,
        tracking_uri=tracking_uri,
        warnings=tuple(hide([*loaded.warnings, *warnings])),
        set_keys=tuple(loaded.set_keys),
        largest_bytes=largest_bytes,
    )


def _with_micro(
    spec: SweepSpec, baseline: TrialSpec, models: Sequence[Mapping[str, Any]], train_samples: int, file: str
) -> tuple[SweepSpec, str]:
    def device_bytes() -> float:
        with contextlib.nullcontext() if is_local() else connect([module_of(spec.task.name)]):
            return device_memory(_nodes(), _per_worker(spec), workers=spec.cluster.workers)

    try:
        return with_fitting_micro(spec, baseline, models, device_bytes, train_samples=train_samples)
    except Refusal as refusal:
        raise refusal.in_file(file) from None


def _parameter_bytes(spec: SweepSpec, options: dict[str, Any]) -> int:
    """Of the model that other options of the space give; a constructor that refuses them is found out here too."""
    return model_size(load_task(spec.task.name, options))[1]


def _text(parameter: Parameter) -> str:
    """A parameter for people, such as ``0.01 to 0.5 (log)``."""
    form = parameter.to_form()
    if isinstance(form, list):
        return ", ".join("null" if value is None else str(value) for value in form)
    notes = ["log" if name == "log" else f"{name.replace('_', ' ')} {form[name]}" for name in list(form)[2:]]
    return f"{form['low']} to {form['high']}" + (f" ({', '.join(notes)})" if notes else "")


def _first_values(spec: SweepSpec) -> dict[str, Any]:
    """One suggestion of the space: what stands in the spec may be infeasible where the space replaces it."""
    reach = Reach(spec)
    return {key: reach.ends(key)[0] for key in spec.space}


def _with_absolute_paths(spec: SweepSpec, file: str) -> SweepSpec:
    """Task options that are paths, made absolute here: trials run in other folders."""
    options = getattr(task_class(spec.task.name), "path_options", ())
    if not isinstance(options, tuple | list):
        rule = f"path_options must be a tuple of option names, not {options!r}"
        raise TaskError(rule, key="task.name", value=spec.task.name, remedy='write path_options = ("path",)')
    raw = spec.to_dict()
    for name in options:
        if isinstance(raw["task"].get(name), str):
            raw["task"][name] = _absolute(raw["task"][name])
        key = f"task.{name}"
        if isinstance(raw["space"].get(key), list):
            raw["space"][key] = [_absolute(value) for value in raw["space"][key]]
    return spec_from_dict(raw, file=file)


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).expanduser().absolute())


def _nodes() -> list[Node]:
    if is_local():
        return [local_node()]
    with connect() as session:
        return list(session.nodes)


def _per_worker(spec: SweepSpec) -> dict[str, float]:
    return {"CPU": spec.cluster.cpus_per_worker, "GPU": spec.cluster.gpus_per_worker}


def _gangs(spec: SweepSpec, nodes: list[Node], file: str) -> int:
    cluster = spec.cluster
    return count_gangs(
        nodes,
        workers=cluster.workers,
        per_worker=_per_worker(spec),
        asked=None if cluster.gangs == "auto" else cluster.gangs,
        trials=spec.search.trials,
        file=file,
    )
