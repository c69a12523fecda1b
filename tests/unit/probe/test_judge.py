"""What to run, from the exact samples-to-target of the noisy quadratic and planted speeds: as computed by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from records import seconds, timed

from orchestrator import sweep
from orchestrator.config.load import load_spec
from orchestrator.config.probe_rules import as_probe
from orchestrator.config.resolve import resolve_trial
from orchestrator.config.yaml_form import dump
from orchestrator.errors import StorageError
from orchestrator.probe import speed
from orchestrator.probe.judge import NAMED, what_to_run
from orchestrator.probe.outcome import outcome_of
from orchestrator.probe.plan import ProbePlan
from orchestrator.probe.record import DEVICE, DONE
from orchestrator.probe.studied import Studied, studied
from orchestrator.theory.geometry import Geometry

PROJECT = Path(__file__).resolve().parents[3]
EXACT = {
    int(row["global_batch"]): (float(row["updates_to_target"]) * int(row["global_batch"]), float(row["best_lr"]))
    for row in csv.DictReader((PROJECT / "tests" / "data" / "quadratics.csv").open())
    if row["workload"] == "noisy_quadratic_d256"
}
LADDER = (2, 4, 8, 16, 64, 256)
SPACE = PROJECT / "search_spaces" / "quadratic_study.yaml"


def run_of(folder: Path, **changes: Any) -> Path:
    """A finished study of the quadratic, as exact as there is."""
    folder.mkdir()
    (folder / "spec.yaml").write_text(load_spec(SPACE).spec.to_yaml())
    ladder = [
        {"global_batch": b, "lr": EXACT[b][1], "seed_samples": [EXACT[b][0] * f for f in (0.99, 1.0, 1.01)]}
        for b in LADDER
    ]
    summary = {
        "method": "ladder",
        "status": "done",
        "sentence": "",
        "ladder": ladder,
        "lr_exponent": {"alpha": 0.78, "low": 0.7, "high": 0.86},
    }
    (folder / "summary.json").write_text(json.dumps(summary | changes))
    return folder


@pytest.fixture
def study(tmp_path: Path) -> Studied:
    return studied(str(run_of(tmp_path / "study")))


def plan() -> ProbePlan:
    spec = as_probe(load_spec(SPACE), file=str(SPACE)).spec
    return ProbePlan(spec=spec, baseline=resolve_trial(spec, {}), train_samples=10**6)


def recommended(study: Studied | None, took: Any = seconds) -> dict[str, Any]:
    geometries = [
        *(Geometry(micro_batch=2**k, world_size=w) for w in (1, 2) for k in range(9)),
        *(Geometry(micro_batch=64, accumulation=a) for a in (2, 4)),
    ]
    device = {"device": "cpu", "free_bytes": 1, "total_bytes": 1, "nodes": 1, "roofline": None}
    events = [{"event": DEVICE, "asked": {}, **device}, *timed(geometries, took), {"event": DONE, "asked": {}}]
    found = speed.timed_of(events)
    return what_to_run(plan(), study, found, speed.fitted(found), outcome_of(plan(), events, {}))


@pytest.mark.parametrize("sync_s", [0.0, 0.05, 1.0])
def test_the_three_are_those_computed_by_hand_from_the_exact_table(study: Studied, sync_s: float) -> None:
    def took(geometry: Geometry) -> float:
        return seconds(geometry, sync_s=sync_s)

    by_hand = {}
    for batch in LADDER:
        for world in (1, 2):
            geometry = Geometry(micro_batch=batch // world, world_size=world)
            time = EXACT[batch][0] * took(geometry) / batch
            by_hand[geometry] = time, time * world / 3600
    found = recommended(study, took)
    best = {
        "fastest": min(by_hand, key=lambda g: by_hand[g][0]),
        "cheapest": min(by_hand, key=lambda g: by_hand[g][1]),
        "balanced": min(by_hand, key=lambda g: by_hand[g][0] * by_hand[g][1]),
    }
    for name, geometry in best.items():
        one = found[name]
        assert (one["global_batch"], one["world_size"]) == (geometry.global_batch, geometry.world_size), name
        assert one["accumulation"] == 1
        assert one["time_s"]["value"] == pytest.approx(by_hand[geometry][0], rel=0.1)
        assert one["device_hours"]["low"] < one["device_hours"]["value"] < one["device_hours"]["high"]
        assert one["lr"] == EXACT[geometry.global_batch][1]
    times = [one["time_s"]["value"] for one in found["front"]]
    assert times == sorted(times)


def test_each_is_a_spec_that_a_sweep_takes(study: Studied, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = recommended(study)["specs"]
    assert set(specs) == set(NAMED)
    for name, spec in specs.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(dump(spec))
        assert sweep.main([str(path), "--dry-run"]) == 0
        assert f"{spec['batch']['global']}" in capsys.readouterr().out


def test_devices_doubling_and_the_bridge_are_told(study: Studied) -> None:
    told = " ".join(recommended(study)["sentences"])
    # About 30 samples; a device gains under 30 % by doubling from 112 on, and its ceiling was not reached.
    assert "feeds 1 (1 to 1) device(s) at micro batch 112, from which doubling gains under 30 %" in told
    assert "Fewest samples: batch 2; most samples a second: batch 512" in told
    assert "nothing bridges them" in told or "bridge" in told
    assert "Memory is free: double batch" in told


def test_without_a_study_only_what_is_efficient_is_told() -> None:
    found = recommended(None)
    assert found["choices"] == []
    assert found["efficient"]["world_size"] == 2
    assert "run python -m orchestrator.study" in found["sentences"][1]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"method": "scan"}, "holds a scan, not a study by the ladder"),
        ({"status": "failed"}, "has not ended"),
        ({"ladder": [{"global_batch": 2, "seed_samples": []}], "sentence": "Nothing."}, "without an answer: Nothing."),
    ],
)
def test_what_is_no_finished_study_is_refused(changes: dict[str, Any], rule: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=rule):
        studied(str(run_of(tmp_path / "study", **changes)))
    with pytest.raises(StorageError, match="holds no finished study"):
        studied(str(tmp_path))
