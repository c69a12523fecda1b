"""Every trial of the study is told once, with the state it ended in; nothing is paid twice; nothing stays RUNNING."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optuna
import pytest
from made_search import Search, completed, evaluated

from orchestrator.errors import ConfigError
from orchestrator.search import searcher as module

MakeSearch = Callable[..., Search]


def test_each_way_to_end_has_its_state_and_value(search: MakeSearch) -> None:
    made = search()
    endings = [
        completed(0.25),
        evaluated(2000, 0.75),
        {"samples_seen": 2000, "metric": 0.5, "status": "diverged", "value": None},
        {"samples_seen": 0, "metric": None, "status": "failed", "value": None},
        {"samples_seen": 4000, "metric": None, "status": "completed", "value": None},
    ]
    for index, result in enumerate(endings):
        made.ask(f"a{index}")
        made.searcher.on_trial_complete(f"a{index}", result)
    made.ask("lost")
    made.searcher.on_trial_complete("lost", None, error=True)
    made.searcher.on_trial_complete("lost", None, error=True)
    assert made.states == ["COMPLETE", "PRUNED", "FAIL", "FAIL", "PRUNED", "FAIL"]
    assert made.study.trials[0].value == 0.25
    assert made.study.trials[1].intermediate_values == {2000: 0.75}


@pytest.mark.parametrize(
    ("kind", "metric", "told"),
    [
        ("best_metric", "val/loss", 0.75),
        ("best_metric", "val/accuracy", 0.75),
        ("samples_to_target", "val/loss", 0.75),
        ("samples_to_target", "val/accuracy", -0.75),
        ("time_to_target", "val/accuracy", -0.75),
    ],
)
def test_a_pruned_value_is_better_in_the_studys_direction_where_it_is_better(
    search: MakeSearch, kind: str, metric: str, told: float
) -> None:
    """TPE ranks pruned trials by their last value, less first if the study minimises: so accuracy is told negative."""
    made = search(kind=kind, metric=metric)
    for tune_id, result in (("stopped", evaluated(2000, 0.75)), ("missed", completed(None, metric=0.75))):
        made.ask(tune_id)
        made.searcher.on_trial_complete(tune_id, result)
    assert made.states == ["PRUNED", "PRUNED"]
    assert [list(trial.intermediate_values.values()) for trial in made.study.trials] == [[told], [told]]


def test_two_objectives_take_no_intermediate_value(search: MakeSearch) -> None:
    made = search(kind="updates_and_samples", metric="val/accuracy", sampler="nsga2")
    made.ask("a")
    made.searcher.on_trial_complete("a", evaluated(2000, 0.3))
    made.ask("b")
    made.searcher.on_trial_complete("b", completed([10, 640]))
    assert made.states == ["PRUNED", "COMPLETE"]
    assert made.study.trials[1].values == [10, 640]


def test_no_more_than_at_once(search: MakeSearch) -> None:
    made = search(at_once=2)
    made.ask("a")
    made.ask("b")
    assert made.searcher.suggest("c") is None
    made.searcher.on_trial_complete("a", completed(0.5))
    made.ask("c")


def test_a_slow_sampler_is_asked_one_ahead_and_no_trial_more_is_paid(search: MakeSearch) -> None:
    made = search(sampler="gp", at_once=1, trials=3)
    made.ask("a")
    made.ask("b")
    assert made.searcher.suggest("c") is None
    made.searcher.on_trial_complete("a", completed(0.5))
    made.ask("c")
    made.searcher.on_trial_complete("b", completed(0.4))
    assert made.searcher.suggest("d") is None
    made.searcher.on_trial_complete("c", completed(0.3))
    assert made.searcher.suggest("d") == "FINISHED"
    assert made.states == ["COMPLETE"] * 3


@pytest.mark.parametrize("sampler", ["grid", "random", "tpe", "gp"])
def test_a_finite_space_is_tried_whole_and_each_run_paid_once(search: MakeSearch, sampler: str) -> None:
    """At the reference batch every rule is the same run: four cells, three runs. A sampler that likes one is led on."""
    space = {"batch.global": [16, 64], "lr.rule": ["none", "linear"], "lr.base": [0.1]}
    made = search(space, sampler=sampler, trials=20, startup_trials=2)
    configs = made.run(lambda config: completed(0.1 if config["info"]["params"]["batch.global"] == 64 else 0.9))
    keys = [config["info"]["key"] for config in configs]
    assert len(set(keys)) == len(keys) == 3
    cells = {tuple(trial.user_attrs["params"].items()) for trial in made.study.trials}
    assert len(cells) == 4
    assert set(made.states) == {"COMPLETE"}
    assert len(made.reused) == len(made.study.trials) - 3


def test_what_a_sampler_leaves_of_a_large_finite_space_is_found(search: MakeSearch) -> None:
    space = {"batch.global": [16, 32, 64], "lr.base": {"low": 0.1, "high": 0.8, "step": 0.1}}
    made = search(space, trials=50, startup_trials=2)
    configs = made.run(lambda config: completed(abs(config["spec"]["lr"]["peak"] - 0.1)))
    assert len({config["info"]["key"] for config in configs}) == 24


def test_a_slow_sampler_is_not_asked_about_the_same_history_again_and_again(
    search: MakeSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Stubborn(optuna.samplers.RandomSampler):
        def sample_independent(self, *args: Any) -> Any:
            return 16

    def make(name: str, **options: Any) -> optuna.samplers.BaseSampler:
        asked.append(name)
        return Stubborn() if name == "gp" else optuna.samplers.RandomSampler(seed=options["number"])

    monkeypatch.setattr(module, "make_sampler", make)
    made = search({"batch.global": [16, 32, 64]}, sampler="gp", trials=3)
    assert len(made.run(lambda config: completed(0.5))) == 3
    assert asked == ["gp"] + 2 * ["gp", "gp", "random"]


@pytest.mark.parametrize("result", [completed(0.3), evaluated(2000, 0.7), {"status": "failed", "value": None}])
def test_a_twin_ends_as_its_run_does_whenever_it_is_suggested(search: MakeSearch, result: dict[str, Any]) -> None:
    """One twin comes while the run is under way, the other after its end."""
    space = {"batch.global": [64], "lr.rule": ["none", "sqrt", "linear"], "lr.base": [0.1, 0.2]}
    made = search(space, sampler="grid", trials=6, at_once=6, seed=3)
    running: dict[str, str] = {}
    while isinstance(config := made.searcher.suggest(f"tune{len(running)}"), dict):
        running[f"tune{len(running)}"] = config["trial"]
    assert len(running) == 2
    for tune_id in running:
        made.searcher.on_trial_complete(tune_id, result)
    assert len(made.reused) == 4
    assert {event["of"] for event in made.reused} == set(running.values())
    (state,) = set(made.states)
    assert state == {"completed": "COMPLETE", "failed": "FAIL"}.get(result.get("status", ""), "PRUNED")


def test_a_twin_of_a_finished_run_takes_its_value_at_once(search: MakeSearch) -> None:
    space = {"batch.global": [64], "lr.rule": ["none", "sqrt"], "lr.base": [0.1]}
    made = search(space, sampler="grid", trials=2)
    (config,) = made.run(lambda config: completed(0.3))
    (event,) = made.reused
    assert (event["of"], event["value"]) == (config["trial"], 0.3)
    assert [trial.value for trial in made.study.trials] == [0.3, 0.3]


def test_an_interrupted_search_leaves_nothing_running(search: MakeSearch) -> None:
    space = {"batch.global": [64], "lr.rule": ["none", "sqrt"], "lr.base": [0.1]}
    made = search(space, sampler="grid", at_once=4)
    made.ask("a")
    assert made.searcher.suggest("b") is None
    assert made.states == ["RUNNING", "RUNNING"], "the run and its twin"
    made.study.ask()  # interrupted in the midst of a suggestion
    made.searcher.close()
    made.searcher.close()
    assert made.states == ["FAIL"] * 3
    made.searcher.on_trial_complete("a", completed(0.1))
    assert made.states == ["FAIL"] * 3


def test_a_sampler_that_breaks_costs_one_failed_trial(search: MakeSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(optuna.samplers.RandomSampler):
        def sample_relative(self, *args: Any) -> dict[str, Any]:
            raise RuntimeError("the matrix is not positive definite")

    make = module.make_sampler
    monkeypatch.setattr(
        module, "make_sampler", lambda name, **options: Broken() if name == "gp" else make(name, **options)
    )
    made = search(sampler="gp", trials=2)
    assert len(made.run(lambda config: completed(0.5))) == 2
    assert made.states == ["FAIL", "COMPLETE", "FAIL", "COMPLETE"]


def test_a_suggestion_that_no_run_can_be_made_of_is_passed_over(search: MakeSearch) -> None:
    made = search({"batch.global": [16, 32, 64], "lr.base": [0.1]}, sampler="grid", trials=3)
    resolve = made.searcher.resolve

    def refusing(params: Any) -> Any:
        if params["batch.global"] == 32:
            raise ConfigError("does not divide", key="batch.global", value=32)
        return resolve(params)

    made.searcher.resolve = refusing
    batches = [config["info"]["params"]["batch.global"] for config in made.run(lambda config: completed(0.5))]
    assert sorted(batches) == [16, 64]
    assert sorted(made.states) == ["COMPLETE", "COMPLETE", "FAIL"]


def test_when_no_gang_is_left_the_search_ends(search: MakeSearch) -> None:
    made = search(trials=500)
    over = {"status": "failed", "value": None, "over": True}
    assert len(made.run(lambda config: over)) == 1
    assert made.states == ["FAIL"]


def test_a_search_taken_up_again_suggests_what_it_would_have(search: MakeSearch) -> None:
    """Suggestions are a function of (seed, number) and the history: a new process on the same study goes on as one."""

    def value(config: dict[str, Any]) -> dict[str, Any]:
        return completed(abs(config["spec"]["lr"]["peak"] - 0.2))

    whole = [config["info"]["params"] for config in search(name="whole", trials=10).run(value)]
    first = [config["info"]["params"] for config in search(name="cut", trials=6).run(value)]
    rest = [config["info"]["params"] for config in search(name="cut", trials=4).run(value)]
    assert first + rest == whole
