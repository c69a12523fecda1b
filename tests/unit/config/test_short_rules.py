"""Which specs branches and scans can be made of, and what becomes of a space that neither searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.config.load import Loaded, load_spec
from orchestrator.config.short_rules import as_branch, as_scan
from orchestrator.errors import ConfigError

SPACE: dict[str, Any] = {
    "task": {"name": "regression"},
    "objective": {"kind": "samples_to_target", "metric": "val/loss", "target": 0.1},
    "lr": {"warmup": 0, "decay": "none"},
    "study": {"batches": [8, 16, 32]},
}


def loaded(tmp_path: Path, *settings: str, **sections: Any) -> Loaded:
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump({**SPACE, **sections}))
    return load_spec(path, settings)


def test_batches_are_all_that_is_left_of_the_space(tmp_path: Path) -> None:
    space = {
        "lr.base": {"low": 0.01, "high": 1.0, "log": True},
        "lr.rule": ["linear", "sqrt"],
        "lr.warmup": {"low": "0%", "high": "10%"},
        "batch.global": {"low": 8, "high": 64, "powers_of": 2},
        "optimizer.momentum": [0.0, 0.9],
        "task.dim": [15, 31],
    }
    found = as_scan(
        loaded(tmp_path, lr={"warmup": "5%"}, task={"name": "regression", "dim": 63}, study={}, space=space), file="f"
    )
    assert list(found.spec.space) == ["batch.global"]
    assert found.spec.space["batch.global"].values() == (8, 16, 32, 64)
    assert found.spec.objective.kind == "best_metric"
    assert found.spec.objective.target is None
    assert found.spec.lr.base == pytest.approx(0.1), "the middle of what would be tried"
    assert found.spec.lr.rule == "sqrt", "the default is among the choices"
    assert str(found.spec.lr.warmup) == "5%", "as written outside the space"
    assert found.spec.task.options == {"dim": 63}
    assert found.spec.lr.decay == "none"
    told = " ".join(found.warnings)
    assert "lr.base = 0.1: from the space, which is not searched here" in told
    assert "task.dim = 63: as written outside the space" in told
    assert "lr.decay = cosine: a scan sees the beginning of training" in told


def test_what_was_made_of_a_spec_is_made_of_it_again(tmp_path: Path) -> None:
    first = as_branch(loaded(tmp_path, space={"lr.base": [0.1, 0.2]}), file="f")
    (tmp_path / "spec.yaml").write_text(first.spec.to_yaml())
    again = as_branch(load_spec(tmp_path / "spec.yaml"), file="f")
    assert again.spec == first.spec
    assert again.warnings == ()


@pytest.mark.parametrize("name", ["bytes", "digits", "quadratic", "regression", "table", "digits_study"])
def test_every_shipped_space_can_be_scanned(name: str) -> None:
    file = f"{Path(__file__).resolve().parents[3]}/search_spaces/{name}.yaml"
    assert len(as_scan(load_spec(file), file=file).spec.space["batch.global"].values()) >= 2


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["lr.decay=cosine"], "lr.decay"),
        (["checkpoint.every_s=null"], "checkpoint.every_s"),
        (["study.batches=auto", "space.batch.global=[8, 16]"], "space.batch.global"),
        (["study.branch.evaluations=4"], "study.branch.evaluations"),
    ],
)
def test_what_branches_cannot_be_made_of_is_refused(tmp_path: Path, settings: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        as_branch(loaded(tmp_path, *settings), file="space.yaml")
    assert (refusal.value.key, refusal.value.file) == (key, "--set")
    assert refusal.value.remedy
