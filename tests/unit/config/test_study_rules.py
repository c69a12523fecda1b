"""What a study can be made of, and the refusal of what it cannot."""

from __future__ import annotations

import pytest

from orchestrator.config.load import load_spec
from orchestrator.config.study_rules import as_study, ladder_of, lr_range
from orchestrator.errors import ConfigError

SPACE = """\
task: {name: digits}
objective: {kind: samples_to_target, metric: val/loss, target: 0.2}
budget: {samples: 40000}
batch: {reference: 32}
lr: {base: 0.05, rule: none, warmup: 0, decay: none}
study: {batches: [8, 32, 128]}
space:
  lr.base: {low: 0.002, high: 2.0, log: true}
"""


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    return path


@pytest.fixture
def study(space):
    def load(*overrides):
        return as_study(load_spec(space, overrides), file=str(space))

    return load


def test_the_ladder_stands_in_the_space(study) -> None:
    spec = study("search.sampler=grid").spec
    assert ladder_of(spec) == (8, 32, 128)
    assert spec.search.sampler == "tpe"
    assert spec.budget.eval_every_samples == 20
    assert (lr_range(spec).low, lr_range(spec).high) == (0.002, 2.0)


def test_what_it_writes_down_is_the_same_study(study, tmp_path) -> None:
    spec = study().spec
    path = tmp_path / "spec.yaml"
    path.write_text(spec.to_yaml())
    assert as_study(load_spec(path), file=str(path)).spec == spec


@pytest.mark.parametrize(
    "settings",
    [("study.batches=auto", "space.batch.global=[32, 128, 8]"), ("space.batch.global=[32, 8, 128]",)],
)
def test_batches_of_the_space_are_the_ladder(study, settings) -> None:
    assert ladder_of(study(*settings).spec) == (8, 32, 128)


def test_without_batches_the_study_starts_at_the_reference(study) -> None:
    spec = study("study.batches=auto").spec
    assert ladder_of(spec) is None
    assert spec.batch.global_batch == 32


def test_a_target_may_be_left_to_the_study(study) -> None:
    assert study("objective={kind: best_metric, metric: val/loss}").spec.objective.target is None


@pytest.mark.parametrize(
    ("settings", "key", "words"),
    [
        (["space={}"], "space.lr.base", "log: true"),
        (["space.lr.base=[0.01, 0.1]"], "space.lr.base", "log range"),
        (["space.lr.base={low: 0.01, high: 1.0}"], "space.lr.base", "log range"),
        (["lr.base=3.0"], "lr.base", "from 0.002 to 2"),
        (["lr.rule=sqrt"], "lr.rule", "lr.rule: none"),
        (["space.lr.rule=[none, sqrt]"], "space.lr.rule", "take it out"),
        (["space.batch.micro=[2, 4]"], "space.batch.micro", "fix batch.micro"),
        (["space.optimizer.name=[SGD, AdamW]"], "space.optimizer.name", "one study for each"),
        (["space.lr.warmup={low: 0%, high: 10%}"], "space.lr.warmup", "50 updates"),
        (["lr.decay=cosine"], "lr.decay", "lr.decay: none"),
        (["lr.warmup=5%"], "lr.warmup", "50 updates"),
        (["objective.kind=time_to_target"], "objective.kind", "samples_to_target"),
        (["study.batches=[8, 32]"], "study.batches", "at least 3"),
        (["study.batches=[8, 32, 32]"], "study.batches", "twice"),
        (["study.batches=[8, 32, 0]"], "study.batches", "at least 1"),
        (["study.batches=8"], "study.batches", "a list"),
        (["study.batches=auto", "space.batch.global=[8, 32]"], "space.batch.global", "at least 3"),
        (["space.batch.global=[8, 32, 64]"], "study.batches", "leave one of the two out"),
        (["study.most_seeds=3"], "study.most_seeds", "5 or more"),
        (["study.least_seeds=1"], "study.least_seeds", "2"),
        (["study.total_samples=100"], "study.total_samples", "40000"),
        (["study.eval_every=20%"], "study.eval_every", "at most 10%"),
        (["study.width=1"], "study.width", "1"),
        (["study.batchs=[8, 16, 32]"], "study.batchs", "study.batches"),
        (["objective={kind: best_metric}", "study.target_from=90%"], "study.target_from", "at most 70%"),
        (["objective={kind: best_metric}", "batch.reference=16"], "batch.reference", "8, 32, 128"),
        (["training.noise_probe=false", "study.batches=auto"], "training.noise_probe", "list study.batches"),
        (["space.study.width=[1, 2]"], "space.study.width", "outside the space"),
    ],
)
def test_what_is_no_study_is_refused(study, settings, key, words) -> None:
    with pytest.raises(ConfigError) as caught:
        study(*settings)
    assert caught.value.key == key
    assert words in str(caught.value).lower()
    assert caught.value.exit_code == 2
