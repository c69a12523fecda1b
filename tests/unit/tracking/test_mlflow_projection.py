from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tracking_project import Project
from tracking_samples import Sweep, trial_spec

from orchestrator.tracking.cursor import cursor_path, load_cursor
from orchestrator.tracking.events import EventLog, read_events

FLOAT_MAX = 1.797e308


def points_of(project: Project) -> list[Any]:
    return sorted(project.rows("SELECT run_uuid, key, step, value, timestamp FROM metrics"))


def test_params_and_metrics_of_a_trial_are_in_one_run_and_nowhere_else(
    project: Project, sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ray-project/ray#36257: params in one run, metrics in another, and a stray mlruns folder.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    sweep.start()
    sweep.whole_trial(0)
    project.send(sweep.log.path)
    runs = project.runs()
    assert len(runs) == 2
    trial, parent = project.trials()["t0000"], project.parent()
    assert trial.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert trial.data.params["batch/global"] == "16"
    assert project.steps(trial, "val/accuracy") == [2000, 4000, 6000, 8000, 10000]
    assert project.steps(trial, "early_grad_norm") == [16, 32, 48]
    assert project.steps(trial, "samples_to_target") == [10000]
    assert trial.data.metrics["value"] == 0.97
    assert trial.data.metrics["noise/value"] == 41.5
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow.db", "mlartifacts", "run"}


def test_the_run_status_says_how_a_trial_ended(project: Project, sweep: Sweep) -> None:
    # mlflow/mlflow#3932: a script that fails without the context manager reads FINISHED.
    endings = [
        ("completed", None, "FINISHED"),
        ("target_reached", None, "FINISHED"),
        ("stopped", "asha", "FINISHED"),
        ("stopped", "race", "FINISHED"),
        ("diverged", None, "FAILED"),
        ("failed", None, "FAILED"),
    ]
    sweep.start()
    for number, (status, stopped_by, _) in enumerate(endings):
        sweep.whole_trial(number, evaluations=1, status=status, stopped_by=stopped_by, reason="because")
    sweep.log.append("sweep_ended", status="done")
    project.send(sweep.log.path)
    runs = project.trials()
    ended = {event["trial"]: event["t"] for event in read_events(sweep.log.path) if event["event"] == "trial_ended"}
    for (trial, run), (status, stopped_by, expected) in zip(sorted(runs.items()), endings, strict=True):
        assert run.info.status == expected
        assert run.data.tags["status"] == status
        assert run.data.tags["reason"] == "because"
        assert run.data.tags.get("stopped_by") == stopped_by
        assert run.info.end_time == int(ended[trial] * 1000)
    assert project.parent().info.status == "FINISHED"


def test_a_failed_trial_tells_where(project: Project, sweep: Sweep) -> None:
    sweep.start()
    failure = {"rank": 1, "phase": "backward", "kind": "RuntimeError", "message": "boom", "traceback": "long story"}
    sweep.whole_trial(0, status="failed", value=None, reason="boom", outcome={"failure": failure})
    project.send(sweep.log.path)
    run = project.trials()["t0000"]
    assert {key: run.data.tags[f"failure/{key}"] for key in ("rank", "phase", "kind")} == {
        "rank": "1",
        "phase": "backward",
        "kind": "RuntimeError",
    }
    assert json.loads(project.artifact_text(run, "outcome.json"))["failure"]["traceback"] == "long story"
    assert "value" not in run.data.metrics


def test_a_diverged_trial_leaves_no_huge_number_and_is_never_best(project: Project, sweep: Sweep) -> None:
    # mlflow/mlflow#1573, #22826: +inf is stored as 1.797e308 and a NaN breaks the run page.
    sweep.start()
    sweep.whole_trial(0)
    trial = sweep.trial(1)
    sweep.evaluate(trial, 1, **{"val/accuracy": 0.999})
    with pytest.raises(ValueError, match="finite"):
        sweep.evaluate(trial, 1, first=2, **{"val/loss": math.inf})
    sweep.end(trial, "diverged", 3008, value=0.999, reason="loss is inf")
    project.send(sweep.log.path)
    run = project.trials()["t0001"]
    assert run.data.tags["diverged"] == "true"
    assert run.data.tags["diverged_at_samples"] == "3008"
    assert "value" not in run.data.metrics
    for key, _, value, is_nan in project.rows("SELECT key, step, value, is_nan FROM metrics"):
        assert not is_nan, key
        assert abs(value) < FLOAT_MAX, key
    experiment = project.parent().info.experiment_id
    best = project.client.search_runs(
        [experiment], "attributes.status = 'FINISHED' and metrics.value > 0", order_by=["metrics.value DESC"]
    )
    assert [found.data.tags["orchestrator.trial"] for found in best] == ["t0000"]


def test_long_options_are_whole_in_the_artifact(project: Project, sweep: Sweep) -> None:
    # microsoft/qlib#1317, mlflow/mlflow#6183: a long value crashes the run, or is cut at 6,000 characters.
    texts = {"t0000": "a" * 6500 + "1" + "a" * 499, "t0001": "a" * 6500 + "2" + "a" * 499}
    sweep.start()
    for number, text in enumerate(texts.values()):
        trial = sweep.trial(number, trial_spec(prompt=text))
        sweep.end(trial)
    project.send(sweep.log.path)
    runs = project.trials()
    params = [runs[trial].data.params["task/prompt"] for trial in texts]
    assert params[0] != params[1]
    for trial, text in texts.items():
        assert runs[trial].info.status == "FINISHED"
        spec = json.loads(project.artifact_text(runs[trial], "spec.json"))
        assert spec["task"]["options"]["prompt"] == text
        assert spec == json.loads(json.dumps(sweep.specs[trial].to_dict()))


def test_a_run_is_closed_when_an_upload_fails(project: Project, sweep: Sweep) -> None:
    # ray-project/ray#64253: a failing artifact upload leaves the run open.
    (project.database.parent / "mlartifacts").write_text("a file where the folder should be")
    sweep.start()
    sweep.whole_trial(0)
    sweep.log.append("sweep_ended", status="done")
    assert project.send(sweep.log.path)
    assert project.trials()["t0000"].info.status == "FINISHED"
    assert project.parent().info.status == "FINISHED"
    cursor = load_cursor(cursor_path(sweep.log.path))
    assert [sentence.split(":")[0] for sentence in cursor.dropped] == [
        "artifact spec.yaml",
        "artifact task_source/my/task.py",
        "artifact spec.json",
        "artifact outcome.json",
    ]


@pytest.mark.parametrize("status", ["interrupted", "failed", "done"])
def test_no_run_stays_open_when_the_sweep_ends(project: Project, sweep: Sweep, status: str) -> None:
    sweep.start()
    sweep.whole_trial(0)
    sweep.evaluate(sweep.trial(1), 2)
    sweep.log.append("sweep_ended", status=status)
    project.send(sweep.log.path)
    assert project.trials()["t0000"].info.status == "FINISHED"
    assert project.trials()["t0001"].info.status == "KILLED"
    assert project.parent().info.status == {"interrupted": "KILLED", "failed": "FAILED", "done": "FINISHED"}[status]
    assert project.parent().data.tags["status"] == status


def test_a_sweep_that_ends_without_a_word_is_closed_and_goes_on_in_the_same_runs(
    project: Project, sweep: Sweep
) -> None:
    sweep.start()
    trial = sweep.trial(0)
    sweep.evaluate(trial, 5)
    project.send(sweep.log.path)
    assert {run.info.status for run in project.runs()} == {"KILLED"}

    # huggingface-style retry (ray-project/ray#48664): fails after 5 evaluations, goes on from the 4th.
    sweep.start()
    sweep.trial(0)
    sweep.evaluate(trial, 6, first=5)
    sweep.end(trial)
    sweep.log.append("sweep_ended", status="done")
    project.send(sweep.log.path)
    run = project.trials()["t0000"]
    assert project.steps(run, "val/loss") == [2000 * step for step in range(1, 11)]
    assert run.info.status == project.parent().info.status == "FINISHED"
    assert run.data.tags["status"] == "completed"
    assert "reason" not in run.data.tags


def test_a_lost_cursor_doubles_nothing(project: Project, sweep: Sweep) -> None:
    sweep.start()
    for number in range(3):
        sweep.whole_trial(number)
    sweep.log.append("sweep_ended", status="done")
    project.send(sweep.log.path)
    before, runs = points_of(project), {run.info.run_id for run in project.runs()}
    cursor_path(sweep.log.path).unlink()
    project.send(sweep.log.path)
    assert points_of(project) == before
    assert {run.info.run_id for run in project.runs()} == runs
    assert {run.info.status for run in project.runs()} == {"FINISHED"}


def test_a_call_whose_answer_is_lost_makes_no_second_run(
    project: Project, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    # mlflow/mlflow#8238: the network retries a create call, and a ghost run stays.
    from mlflow.tracking import MlflowClient

    lost: list[str] = []
    for name in ("create_run", "create_experiment", "log_batch", "set_terminated"):
        real = getattr(MlflowClient, name)

        def losing(*args: Any, real: Any = real, name: str = name, **kwargs: Any) -> Any:
            answer = real(*args, **kwargs)
            if lost.count(name) < 2:
                lost.append(name)
                raise ConnectionError("the answer was lost")
            return answer

        monkeypatch.setattr(MlflowClient, name, losing)
    sweep.start()
    for number in range(2):
        sweep.whole_trial(number)
    sweep.log.append("sweep_ended", status="done")
    assert project.send(sweep.log.path)
    assert sorted(lost) == sorted(2 * ["create_run", "log_batch", "set_terminated"] + ["create_experiment"])
    assert len(project.runs()) == 3
    assert {run.info.status for run in project.runs()} == {"FINISHED"}
    assert project.rows("SELECT count(*) FROM metrics WHERE key = 'val/loss'") == [(10,)]


def test_reused_trials_have_no_run_and_are_counted(project: Project, sweep: Sweep) -> None:
    sweep.start()
    sweep.whole_trial(0)
    for number in (1, 2):
        sweep.log.append("trial_reused", trial=f"t000{number}", number=number, params={}, of="t0000", value=0.97)
    project.send(sweep.log.path)
    assert set(project.trials()) == {"t0000"}
    assert project.trials()["t0000"].data.tags["reused_by"] == "t0001, t0002"
    assert project.parent().data.metrics["trials/reused"] == 2
    assert project.steps(project.parent(), "trials/completed") == [20000]


def test_two_sweeps_of_one_experiment_keep_their_trials_apart(project: Project, sweep: Sweep, tmp_path: Path) -> None:
    sweep.start()
    sweep.whole_trial(0)
    project.send(sweep.log.path)
    with EventLog(tmp_path / "second" / "events.jsonl") as log:
        second = Sweep(log)
        second.start()
        second.whole_trial(0)
        project.send(log.path)
    parents = project.runs("tags.`orchestrator.kind` = 'sweep'")
    trials = project.runs("tags.`orchestrator.kind` = 'trial'")
    assert len(parents) == len(trials) == 2
    assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {run.info.run_id for run in parents}


def test_figures_of_the_sweep_are_on_its_run(project: Project, sweep: Sweep, tmp_path: Path) -> None:
    figure = tmp_path / "metric by samples.png"
    figure.write_bytes(b"\x89PNG")
    sweep.start()
    sweep.log.append("artifact", path=str(figure), folder="")
    sweep.log.append("artifact", path=str(tmp_path / "missing.png"), folder="")
    project.send(sweep.log.path)
    assert "metric by samples.png" in project.artifacts(project.parent())
    (dropped,) = load_cursor(cursor_path(sweep.log.path)).dropped
    assert "missing.png" in dropped
