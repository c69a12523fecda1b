"""Keys beside the learning rate, tuned at each batch: found where they help, left alone where they do not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from study_cost import Synthetic, quadratic_config, trained

from orchestrator.config.load import load_spec
from orchestrator.config.study_rules import as_study, other_keys
from orchestrator.study.planning import StudyPlanner
from orchestrator.study.settings import Trained, settings_of
from orchestrator.theory.ladder import LadderConfig
from orchestrator.theory.ladder_planner import Verdict
from orchestrator.theory.ladder_summary import summarise

SPACE = """\
task: {name: digits}
objective: {kind: samples_to_target, metric: val/loss, target: 0.2}
budget: {samples: 40000}
batch: {reference: 32}
lr: {base: 0.05, rule: none, warmup: 0, decay: none}
study: {batches: [8, 32, 128], settings: 4}
space:
  lr.base: {low: 0.002, high: 2.0, log: true}
  lr.warmup: {low: 0, high: 20 updates}
  optimizer.momentum: {low: 0.0, high: 0.95}
"""
CONFIG = quadratic_config(0, batches=(2, 8, 64), target=1.0, final_least=2, final_most=2, precision=1.0, width=20.0)


@pytest.fixture
def spec(tmp_path):
    def load(*overrides: str, text: str = SPACE) -> Any:
        path = tmp_path / "space.yaml"
        path.write_text(text)
        return as_study(load_spec(path, overrides), file=str(path)).spec

    return load


def studied(problems: list[Synthetic], config: LadderConfig = CONFIG) -> tuple[list[Trained], StudyPlanner, Verdict]:
    """A study in which each setting is a problem of its own."""
    planner = StudyPlanner(config=config, count=len(problems))
    known: list[Trained] = []
    while True:
        found = planner.next_jobs(known, [], 1)
        if isinstance(found, Verdict):
            return known, planner, found
        (job,) = found
        raced = job.run.purpose == "search"
        result = trained(problems[job.setting], job.run, job.rival if raced else None)
        known.append(Trained(setting=job.setting, result=result, phase=job.phase))
        assert planner.next_jobs(known, [], 1) == planner.next_jobs(list(reversed(known)), [], 1)


def slower(factor: float) -> Synthetic:
    """A setting under which every batch needs `factor` times the samples, at another best learning rate."""
    problem = Synthetic(seed_sd=0.04, cliff=2.0)
    exact = {batch: (factor * samples, 0.7 * lr) for batch, (samples, lr) in problem.exact.items()}
    object.__setattr__(problem, "exact", exact)
    return problem


def test_settings_are_the_written_one_and_suggestions_within_the_space(spec) -> None:
    found = settings_of(spec())
    assert found == settings_of(spec())
    assert found != settings_of(spec("seed=1"))
    assert found[0] == {}
    assert len(found) == 5
    for values in found[1:]:
        assert set(values) == set(other_keys(spec())) == {"lr.warmup", "optimizer.momentum"}
        assert 0.0 <= values["optimizer.momentum"] <= 0.95
    (one, *_) = settings_of(spec("space.optimizer.momentum=null", "space.lr.warmup=null"))
    assert one == {}


def test_without_other_keys_nothing_is_tuned(spec) -> None:
    assert settings_of(spec("space.optimizer.momentum=null", "space.lr.warmup=null")) == ({},)
    known, _, _ = studied([slower(1.0)])
    assert {one.phase for one in known} == {"search", "final"}


def test_a_clearly_better_setting_is_found_and_its_finals_count() -> None:
    known, planner, verdict = studied([slower(1.5), slower(2.0), slower(1.0)])
    assert planner.chosen(known) == {2: 2, 8: 2, 64: 2}
    assert {one.setting for one in known if one.phase == "final"} == {2}
    found = summarise(CONFIG, planner.view(known))
    for one in found.batches:
        assert one.crossing is not None
        assert one.crossing.samples == pytest.approx(1000.0 * (1 + one.global_batch / 28.9), rel=0.2)
    assert verdict.kind == "done"


def test_settings_that_are_no_better_change_nothing_and_cost_little() -> None:
    known, planner, _ = studied([slower(1.0), slower(1.6), slower(3.0)])
    assert planner.chosen(known) == {2: 0, 8: 0, 64: 0}
    spent = {phase: sum(one.result.samples for one in known if one.phase == phase) for phase in ("settings", "search")}
    assert spent["settings"] < 3.0 * spent["search"]


def test_a_setting_that_never_reaches_the_target_is_given_up() -> None:
    known, planner, _ = studied([slower(1.0), Synthetic(reachable=False)])
    assert set(planner.chosen(known).values()) == {0}
    tried = [one for one in known if one.setting == 1]
    assert len(tried) <= 3 * len(CONFIG.batches)


def test_what_other_settings_train_counts_for_the_whole() -> None:
    config = dataclasses.replace(CONFIG, total_samples=60_000)
    known, _, verdict = studied([slower(1.0), slower(1.1), slower(1.2)], config)
    assert verdict.kind in ("spent", "done")
    assert sum(one.result.samples for one in known) < 1.3 * 60_000


def test_settings_of_a_batch_are_tried_on_several_gangs_at_once() -> None:
    known, planner, _ = studied([slower(1.0)])
    known = [one for one in known if one.phase == "search"]
    three = StudyPlanner(config=planner.config, count=4)
    jobs = three.next_jobs(known, [], 3)
    assert not isinstance(jobs, Verdict)
    assert {job.phase for job in jobs} == {"settings"}
    assert len({(job.run.global_batch, job.setting) for job in jobs}) == len(jobs) >= 2
    more = three.next_jobs(known, jobs, 1)
    assert not isinstance(more, Verdict)
    pairs = [{(job.run.global_batch, job.setting) for job in found} for found in (jobs, more)]
    assert not pairs[0] & pairs[1]
