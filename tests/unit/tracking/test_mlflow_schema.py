from __future__ import annotations

import json
from pathlib import Path

import pytest
from tracking_project import Project
from tracking_samples import FACTS, SWEEP_SPEC, Sweep, trial_spec

from orchestrator.tracking import schema
from orchestrator.tracking.params import params_of, shortened, sweep_params_of, text_of
from orchestrator.tracking.schema import find_key, markdown, required

STARTED = {
    "name": "digits",
    "spec": SWEEP_SPEC,
    "facts": FACTS,
    "software": {"python": "3.11.7", "torch": "2.13.0", "cuda": None},
    "hardware": {"device": "cpu", "count": 2, "nodes": 1},
}


def test_the_page_is_the_generated_one() -> None:
    page = Path(schema.__file__).parents[2] / "docs" / "mlflow-schema.md"
    assert page.read_text() == markdown(), "python -m orchestrator.tracking.schema > docs/mlflow-schema.md"


def test_a_sweep_leaves_exactly_the_keys_of_the_schema(project: Project, sweep: Sweep, tmp_path: Path) -> None:
    sweep.start()
    sweep.whole_trial(0)
    sweep.whole_trial(1, status="stopped", stopped_by="asha", reason="below the rung")
    failure = {"rank": 1, "phase": "backward", "kind": "RuntimeError", "message": "boom", "traceback": "..."}
    sweep.whole_trial(2, status="failed", value=None, reason="boom", outcome={"failure": failure})
    trial = sweep.trial(3)
    sweep.end(trial, "diverged", 3008, value=None, reason="loss is inf", outcome={"notes": ["statistically equal"]})
    sweep.trial(4, trial_spec(seed=7), phase="repeat", repeat_of="t0000")
    sweep.end("t0004", value=[100, 6400])
    sweep.log.append("trial_reused", trial="t0005", number=5, params={}, of="t0001", value=0.9)
    (tmp_path / "figure.png").write_bytes(b"png")
    sweep.log.append("artifact", path=str(tmp_path / "figure.png"), folder="figures")
    sweep.resume(torch=["2.13.0", "2.14.0"], task_source=["feedfacefeedface", "0123456789abcdef"])
    sweep.trial(6)
    sweep.interrupt("t0006")
    sweep.go_on("t0006", 4000, world_size=1, accumulation=2)
    sweep.evaluate("t0006", 2, **{"geometry/world_size": 1, "geometry/accumulation": 2, "geometry/micro_batch": 8})
    plan = {"micro_batch": 8, "accumulation": 2, "world_size": 1}
    sweep.end("t0006", outcome={"plan": plan, "resumed_from": 4000})
    sweep.log.append("sweep_ended", status="done")
    project.send(sweep.log.path)

    trials = list(project.trials().values())
    assert len(trials) == 6
    used: set[tuple[str, str, str]] = set()
    for scope, runs in (("trial", trials), ("sweep", [project.parent()])):
        for run in runs:
            found = {
                "param": set(run.data.params),
                "metric": set(run.data.metrics),
                "tag": set(run.data.tags),
                "artifact": project.artifacts(run),
            }
            for kind, names in found.items():
                unknown = {name for name in names if find_key(kind, scope, name) is None}
                assert not unknown, f"{kind}s of a {scope} that the schema does not know: {unknown}"
                missing = required(kind, scope) - names
                assert not missing, f"{kind}s of a {scope} that are missing: {missing}"
                used |= {(kind, scope, find_key(kind, scope, name).name) for name in names}
    known = {(key.kind, key.scope, key.name) for key in schema.KEYS}
    others = ("study", "ladder", "branch", "scan", "scaling", "probe")
    of_studies = {key for key in known if key[1] == "sweep" and key[2].split("/")[0] in others}
    # What this sweep had no reason to write: other measurements on training data, an early end at the target, and why
    # another start had to close it.
    assert known - used - of_studies == {
        ("metric", "trial", "train/*"),
        ("metric", "sweep", "trials/target_reached"),
        ("tag", "sweep", "reason"),
    }


def test_the_schema_does_not_know_everything() -> None:
    assert find_key("metric", "trial", "accuracy") is None
    assert find_key("param", "trial", "batch_size") is None
    assert find_key("metric", "trial", "val/accuracy").name == "val/*"
    assert find_key("param", "trial", "task/source_hash").name == "task/source_hash"


def test_params_are_the_resolved_numbers() -> None:
    spec = trial_spec(global_batch=128, peak=0.141)
    params = params_of({"spec": json.loads(json.dumps(spec.to_dict()))}, STARTED)
    assert {key: params[key] for key in params if key.startswith("batch/")} == {
        "batch/global": "128",
        "batch/micro": "64",
        "batch/accumulation": "1",
        "batch/world_size": "2",
        "batch/per_worker": "64",
        "batch/reference": "64",
    }
    assert params["lr/peak"] == "0.141"
    assert (params["lr/warmup_samples"], params["lr/warmup_updates"]) == ("1000", "8")
    assert params["budget/updates"] == "157"
    assert params["grad_clip"] == params["lr/exponent"] == params["software/cuda"] == "none"
    assert (params["optimizer/momentum"], params["optimizer/nesterov"]) == ("0.9", "true")
    assert (params["task/model"], params["data/train_samples"], params["threads"]) == ("mlp", "1438", "1")
    assert sweep_params_of(STARTED)["space/lr.base"] == '{"high":1.0,"log":true,"low":0.01}'


def test_long_values_are_short_and_still_told_apart() -> None:
    one, other = "a" * 6500 + "1" + "a" * 499, "a" * 6500 + "2" + "a" * 499
    assert shortened(one) != shortened(other)
    assert len(shortened(one)) < 300
    assert "7000 characters" in shortened(one)
    assert text_of("a" * 6000) == "a" * 6000
    assert text_of([1, None]) == "[1,null]"
    assert [text_of(value) for value in (True, False, None, 0.1, 3, "x")] == ["true", "false", "none", "0.1", "3", "x"]


@pytest.mark.parametrize("kind", ["param", "metric", "tag", "artifact"])
@pytest.mark.parametrize("scope", ["trial", "sweep"])
def test_no_key_is_listed_twice(kind: str, scope: str) -> None:
    names = [key.name for key in schema.KEYS if (key.kind, key.scope) == (kind, scope)]
    assert names
    assert len(names) == len(set(names))
