"""What MLflow holds of a trial, read back, and what is refused, listed or restored before it is trained again."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tracking_project import Project
from tracking_samples import SWEEP_SPEC, Sweep, trial_spec

from orchestrator import replay
from orchestrator.cluster.capacity import Node
from orchestrator.cluster.snapshot import imported_first
from orchestrator.errors import RefusedError, ResourceError, TaskError
from orchestrator.replay_checks import check_surroundings, choose_source, trial_to_train
from orchestrator.replay_training import Conditions, Trained, reservation
from orchestrator.replay_verdict import judge
from orchestrator.tracking.events import EventLog
from orchestrator.tracking.record import TrialRecord, read_record, trials_of
from orchestrator.tracking.task_source import source_hash

URI = "s3://me:secret@bucket/data"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A sweep with a whole trial, a stopped one, one under way, and one whose task has a credential."""
    folder = tmp_path_factory.mktemp("project")
    project = Project(folder / "mlflow.db")
    with EventLog(folder / "events.jsonl") as log:
        sweep = Sweep(log)
        files = {"my_replayed/task.py": "from my_replayed import X\n", "my_replayed/__init__.py": "X = 1\n"}
        sweep.start(task_source={"hash": source_hash(files), "files": files})
        sweep.whole_trial(0)
        sweep.evaluate(sweep.trial(1), 2)
        sweep.end("t0001", "stopped", 4000, stopped_by="asha")
        sweep.evaluate(sweep.trial(2), 3)
        sweep.evaluate(sweep.trial(3, trial_spec(path=URI)), 1)
        sweep.trial(4)
        sweep.resume(torch=["1", "2"], task_source=[source_hash(files), "0123456789abcdef"], threads=[1, 2])
        sweep.go_on("t0002", 4000, world_size=1, accumulation=2)
        sweep.evaluate("t0002", 4)
        sweep.evaluate(sweep.trial(5), 1)
        project.send(log.path)
    return project


def record_of(project: Project, trial: str) -> TrialRecord:
    return read_record(project.uri, project.trials()[trial].info.run_id)


def test_a_record_is_what_was_sent(project: Project) -> None:
    record = record_of(project, "t0000")
    sent = trial_spec(global_batch=16, peak=0.05)
    assert record.spec == json.loads(json.dumps(sent.to_dict()))
    trained, differences = trial_to_train(record, [])
    assert (trained, differences) == (sent, ())
    assert (record.status, record.is_whole, record.other_split) == ("completed", True, None)
    assert record.evaluations == (2000, 4000, 6000, 8000, 10000)
    assert record.history["val/loss"] == {2000 * step: 2.2 / step for step in range(1, 6)}
    assert record.sweep_spec["space"] == SWEEP_SPEC["space"]
    assert set(record.source) == {"my_replayed/task.py", "my_replayed/__init__.py"}
    assert source_hash(record.source) == record.param("task/source_hash")
    conditions = Conditions.of(record, {})
    assert (conditions.threads, conditions.deterministic, conditions.gpus_per_worker) == (1, True, 0.0)


def test_how_far_a_trial_came_and_how_it_was_split(project: Project) -> None:
    assert (record_of(project, "t0001").status, record_of(project, "t0001").is_whole) == ("stopped", False)
    under_way = record_of(project, "t0002")
    assert not under_way.is_whole
    assert under_way.other_split == "32 x 2 x 1"
    changed = check_surroundings(under_way, gpus=False, accelerator="")
    assert {"torch", "threads", "task_source"} <= {difference.name for difference in changed}


def test_a_trial_after_a_resumption_has_the_source_and_the_threads_of_then(project: Project) -> None:
    record = record_of(project, "t0005")
    assert record.source == {"my/task.py": "class MyTask: x = 1\n"}
    assert Conditions.of(record, {}).threads == 2


@pytest.mark.parametrize(
    ("trial", "rule"),
    [("t0004", "an evaluation to compare with"), ("sweep", "is a sweep's"), ("no-such-run", "must have the run")],
)
def test_what_cannot_be_replayed_is_refused(project: Project, trial: str, rule: str, capsys: Any) -> None:
    runs = {**project.trials(), "sweep": project.parent()}
    run_id = runs[trial].info.run_id if trial in runs else trial
    assert replay.main([run_id, "--tracking-uri", project.uri]) == 2
    said = capsys.readouterr()
    assert rule in said.err
    listed = [line.split()[0] for line in said.out.splitlines()]
    assert listed == ([project.trials()[f"t000{n}"].info.run_id for n in range(6)] if trial == "sweep" else [])
    assert len(trials_of(project.uri, project.parent().info.run_id)) == 6


def test_a_database_that_is_not_there_is_refused_and_not_made(tmp_path: Path, capsys: Any) -> None:
    assert replay.main(["some-run", "--tracking-uri", f"sqlite:///{tmp_path}/no.db"]) == 2
    assert "there is no such database" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_lost_credential_is_asked_for_and_given_again(project: Project) -> None:
    record = record_of(project, "t0003")
    with pytest.raises(RefusedError, match=r"task\.path.*lost its credential.*--set task\.path="):
        trial_to_train(record, [])
    trained, differences = trial_to_train(record, [f"task.path={URI}"])
    assert trained == trial_spec(path=URI)
    assert differences == ()


def test_only_the_task_may_be_told_anew_and_that_is_listed(project: Project) -> None:
    record = record_of(project, "t0000")
    for override in ("lr.base=0.1", "task.name=bytes", "seed=1"):
        with pytest.raises(RefusedError, match="a replay takes everything from the record"):
            trial_to_train(record, [override])
    trained, (difference,) = trial_to_train(record, ["task.hidden=32"])
    assert trained.task.options["hidden"] == 32
    assert str(difference) == "task/hidden was 64, and is 32 here"


def test_a_spec_that_is_not_the_one_of_the_run_is_listed(project: Project) -> None:
    record = record_of(project, "t0000")
    changed = dataclasses.replace(record, spec={**record.spec, "seed": 1})
    _, (difference,) = trial_to_train(changed, [])
    assert (difference.name, difference.recorded) == ("the spec's key", trial_spec(global_batch=16, peak=0.05).key)
    with pytest.raises(RefusedError, match="one that this version can read"):
        trial_to_train(dataclasses.replace(record, spec={**record.spec, "newer": 1}), [])


def test_versions_and_hardware_are_listed_and_the_commit_is_not(project: Project) -> None:
    record = record_of(project, "t0000")
    params = {**record.params, "software/torch": "1.0", "software/git_commit": "f00", "hardware/device": "abacus"}
    found = check_surroundings(dataclasses.replace(record, params=params), gpus=False, accelerator="")
    assert {difference.name: difference.recorded for difference in found} == {
        "software/torch": "1.0",
        "hardware/device": "abacus",
    }
    (device,) = check_surroundings(record, gpus=True, accelerator="H100")
    assert device.here == "H100"


def test_the_recorded_source_is_used_where_it_is_not_installed(project: Project) -> None:
    record = record_of(project, "t0000")
    source = choose_source(record, "my_replayed.task:Mine")
    assert source.files == record.source
    assert source.differences == ()
    assert "none is installed here" in source.note
    tampered = {**record.source, "my_replayed/task.py": "other\n"}
    (difference,) = choose_source(dataclasses.replace(record, source=tampered), "my_replayed.task:Mine").differences
    assert difference.recorded == source_hash(record.source)
    with pytest.raises(RefusedError, match="must be importable, or its source be in the record"):
        choose_source(dataclasses.replace(record, source={}), "my_replayed.task:Mine")


def test_a_built_in_task_is_taken_as_installed_and_a_change_is_listed(project: Project) -> None:
    source = choose_source(record_of(project, "t0000"), "digits")
    assert source.files == {}
    assert [difference.name for difference in source.differences] == ["task/source_hash"]


def told_again(record: TrialRecord, *, end: str, at: int, factor: float = 1.0) -> Trained:
    """What a gang would tell that trains the recorded trial again; the losses are off by `factor`."""
    names = [name for name in record.history if name != "early_grad_norm" and "/" not in name.removeprefix("val/")]
    evaluations = [
        {
            "samples_seen": step,
            "updates": record.history["updates"][step],
            "metrics": {
                name: record.history[name][step] * (factor if name == "val/loss" else 1.0)
                for name in [*names, "train/loss"]
                if step in record.history[name]
            },
        }
        for step in record.evaluations
    ]
    outcome = {
        "status": end,
        "samples_seen": at,
        "first_grad_norms": [2.0, 1.9, 1.8],
        "noise": {"value": 41.5, "low": 38.0, "high": 46.0, "windows": 300, "reason": "", "unit": "samples"},
        "skipped_updates": 0,
    }
    return Trained(evaluations=tuple(evaluations), outcome=outcome)


def test_a_whole_run_must_be_met_to_its_end(project: Project) -> None:
    record = record_of(project, "t0000")
    found, notes = judge(record, told_again(record, end="completed", at=20000))
    assert (found.holds, found.evaluations, notes) == (True, 5, ())
    assert {"noise/value", "early_grad_norm", "skipped_updates"} <= {metric.name for metric in found.metrics}
    assert not judge(record, told_again(record, end="diverged", at=20000))[0].holds
    assert not judge(record, told_again(record, end="completed", at=19999))[0].holds


@pytest.mark.parametrize("at", [4000, 6000])
def test_a_stopped_run_is_met_as_far_as_it_came(project: Project, at: int) -> None:
    """The replay may stop an evaluation later; what it then says of more samples is no difference."""
    record = record_of(project, "t0001")
    found, (note,) = judge(record, told_again(record, end="stopped", at=at))
    assert found.holds
    assert ("noise/value" in {metric.name for metric in found.metrics}) == (at == 4000)
    assert "up to its last evaluation" in note


@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (1.000001, True), (1.0001, False)])
def test_another_split_on_the_way_allows_for_rounding(project: Project, factor: float, holds: bool) -> None:
    record = record_of(project, "t0002")
    found, notes = judge(record, told_again(record, end="completed", at=20000, factor=factor))
    assert found.holds == holds
    assert "bits cannot be expected" in notes[-1]
    assert "noise_scale" not in {metric.name for metric in found.metrics}
    whole = record_of(project, "t0000")
    assert judge(whole, told_again(whole, end="completed", at=20000, factor=factor))[0].holds == (factor == 1.0)


def test_files_are_imported_first_and_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "twice_there.py").write_text("X = 'installed'\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed = importlib.import_module("twice_there")
    before = list(sys.path)
    with imported_first({"twice_there.py": "from only_recorded.inner import X\n", "only_recorded/inner.py": "X = 2\n"}):
        assert importlib.import_module("twice_there").X == 2
    assert sys.path == before
    assert importlib.import_module("twice_there") is installed
    assert "only_recorded" not in sys.modules
    for name in ("../outside.py", "/outside.py", "a/../../b.py"):
        with pytest.raises(TaskError, match="must lie in its folder"), imported_first({name: ""}):
            pass


@pytest.mark.parametrize(("workers", "cpus"), [(1, 1.0), (2, 1.0), (3, 0.5), (4, 0.5), (8, 0.25)])
def test_workers_reserve_less_until_they_fit(workers: int, cpus: float) -> None:
    recorded = Conditions(cpus_per_worker=1.0, gpus_per_worker=0.0, threads=1, deterministic=True)
    assert reservation([Node(name="laptop", resources={"CPU": 2.0})], workers, recorded) == {"CPU": cpus}


def test_gpus_are_not_shared_out() -> None:
    recorded = Conditions(cpus_per_worker=1.0, gpus_per_worker=1.0, threads=1, deterministic=True)
    with pytest.raises(ResourceError, match="2 GPU"):
        reservation([Node(name="laptop", resources={"CPU": 8.0, "GPU": 1.0})], 2, recorded)
