"""Which specs a scaling check can be made of: worker counts become batches, and what cannot be compared is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.config.load import Loaded, load_spec
from orchestrator.config.scaling_rules import as_scaling, in_its_words
from orchestrator.errors import ConfigError

SPACE: dict[str, Any] = {
    "task": {"name": "regression"},
    "objective": {"kind": "samples_to_target", "metric": "val/loss", "target": 0.1},
    "budget": {"samples": 4096, "eval_every": 512},
    "batch": {"global": 64, "reference": 32},
    "cluster": {"workers": 4},
}


def loaded(tmp_path: Path, *settings: str) -> Loaded:
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(SPACE))
    return load_spec(path, settings)


def scaled(tmp_path: Path, *settings: str) -> Loaded:
    return as_scaling(loaded(tmp_path, *settings), file="space.yaml")


def test_one_worker_against_those_of_the_cluster(tmp_path: Path) -> None:
    spec = scaled(tmp_path).spec
    assert (spec.study.scaling.workers, spec.study.scaling.per_worker_batch) == ((1, 4), 16)
    assert spec.space["batch.global"].values() == (16, 64)
    assert (spec.objective.kind, spec.objective.target) == ("best_metric", None)
    assert spec.batch.reference_batch == 32
    assert spec.budget.samples == 4096


@pytest.mark.parametrize(
    ("settings", "per_worker", "most"),
    [
        (["study.scaling.per_worker_batch=8"], 8, 8),
        (["batch.micro=4", "batch.accumulation=3"], 12, 4),
        (["batch.micro=8"], 16, 8),
        (["batch.accumulation=4"], 16, 4),
        (["batch.micro_max=2"], 16, 2),
        (["space.batch.global=[32, 128]"], 16, 16),
    ],
)
def test_what_one_worker_contributes_and_holds(tmp_path: Path, settings: list[str], per_worker: int, most: int) -> None:
    spec = scaled(tmp_path, *settings).spec
    assert spec.study.scaling.per_worker_batch == per_worker
    assert spec.space["batch.global"].values() == (per_worker, 4 * per_worker)
    assert (spec.batch.micro_batch, spec.batch.accumulation, spec.batch.micro_batch_max) == (None, None, most)


def test_a_micro_batch_that_is_to_be_found_is_found_within_what_one_worker_has(tmp_path: Path) -> None:
    batch = scaled(tmp_path, "batch.micro=auto").spec.batch
    assert (batch.micro_batch, batch.micro_batch_max) == ("auto", 16)


def test_every_batch_ends_on_the_same_sample(tmp_path: Path) -> None:
    found = scaled(tmp_path, "study.scaling.workers=[1, 3, 4]", "budget.samples=1000", "budget.eval_every=1000")
    assert found.spec.budget.samples == 960
    assert found.spec.budget.eval_every_samples == 960
    assert any(text.startswith("budget.samples = 960") for text in found.warnings)


def test_a_learning_rate_that_does_not_follow_the_batch_is_told(tmp_path: Path) -> None:
    assert any(text.startswith("lr.rule = none") for text in scaled(tmp_path, "lr.rule=none").warnings)


def test_what_was_made_of_a_spec_is_made_of_it_again(tmp_path: Path) -> None:
    first = scaled(tmp_path, "study.scaling.workers=[1, 3]", "batch.micro=8", "budget.samples=1000", "lr.rule=sqrt")
    (tmp_path / "spec.yaml").write_text(first.spec.to_yaml())
    again = as_scaling(load_spec(tmp_path / "spec.yaml"), file="f")
    assert again.spec == first.spec
    assert again.warnings == ()
    fewer = as_scaling(load_spec(tmp_path / "spec.yaml", ["cluster.workers=2"]), file="f")
    assert fewer.spec.space == first.spec.space


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["study.scaling.workers=[1]"], "study.scaling.workers"),
        (["study.scaling.workers=[1, 1]"], "study.scaling.workers"),
        (["study.scaling.workers=[0, 1]"], "study.scaling.workers"),
        (["study.scaling.workers=8"], "study.scaling.workers"),
        (["cluster.workers=1"], "study.scaling.workers"),
        (["study.scaling.workers=[1, 1000]"], "study.scaling.workers"),
        (["study.scaling.workers=[7, 11, 13]"], "study.scaling.workers"),
        (["study.scaling.per_worker_batch=6"], "cluster.workers"),
        (["batch.global=66"], "batch.global"),
        (["study.scaling.seeds=1"], "study.scaling.seeds"),
        (["study.scaling.tolerance=0"], "study.scaling.tolerance"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, settings: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        scaled(tmp_path, *settings)
    assert (refusal.value.key, refusal.value.file) == (key, "--set" if settings[0].startswith(key) else "space.yaml")
    assert refusal.value.remedy


def test_a_searched_batch_is_no_setting_to_scale(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("task: {name: digits}\nspace: {batch.global: [16, 32]}\n")
    with pytest.raises(ConfigError, match="per_worker_batch = None: a scaling check scales one setting"):
        as_scaling(load_spec(tmp_path / "space.yaml"), file="space.yaml")


def test_a_refused_batch_is_told_of_its_workers(tmp_path: Path) -> None:
    spec = scaled(tmp_path, "study.scaling.workers=[1, 128]").spec
    error = ConfigError("must be at most the 1437 training samples", key="space.batch.global", value=2048)
    in_its_words(error, spec)
    assert str(error).startswith("study.scaling.workers = [1, 128]: the global batch of 128 workers, 2048, must be at")
    other = ConfigError("a rule", key="lr.base", value=1)
    in_its_words(other, spec)
    assert (other.key, other.rule) == ("lr.base", "a rule")
