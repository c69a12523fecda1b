"""Which settings are repeated, under which seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from made_search import Search, completed, evaluated

from orchestrator.search.repeats import plan_repeats
from orchestrator.search.searcher import Suggestion

MakeSearch = Callable[..., Search]


def planned(made: Search, values: list[Any], *, top: int, seeds: int) -> list[Suggestion]:
    """The repeats after a search whose trials ended with `values`; a dict is a whole last result."""
    for index, value in enumerate(values):
        made.ask(f"a{index}")
        made.searcher.on_trial_complete(f"a{index}", value if isinstance(value, dict) else completed(value))
    return plan_repeats(
        made.searcher.finished, objective=made.objective, top=top, seeds=seeds, resolve=lambda p, s: made.resolve(p, s)
    )


def test_the_best_are_repeated_under_new_seeds_only(search: MakeSearch) -> None:
    made = search(sampler="random")
    repeats = planned(made, [0.5, 0.1, 0.3], top=2, seeds=3)
    assert [repeat.trial for repeat in repeats] == ["t0001-seed1", "t0001-seed2", "t0002-seed1", "t0002-seed2"]
    assert [repeat.spec.seed for repeat in repeats] == [1, 2, 1, 2]
    first = made.searcher.finished[1][0]
    assert all(repeat.params == first.params for repeat in repeats[:2])
    assert len({repeat.spec.key for repeat in repeats} | {first.spec.key}) == 5
    assert {(repeat.phase, repeat.repeat_of) for repeat in repeats} == {("repeat", "t0001"), ("repeat", "t0002")}


def test_more_is_better_where_the_metric_says_so(search: MakeSearch) -> None:
    repeats = planned(search(sampler="random", metric="val/accuracy"), [0.5, 0.1, 0.9], top=1, seeds=2)
    assert [repeat.repeat_of for repeat in repeats] == ["t0002"]
    repeats = planned(
        search(sampler="random", kind="samples_to_target", metric="val/accuracy", name="b"), [500, 100], top=1, seeds=2
    )
    assert [repeat.repeat_of for repeat in repeats] == ["t0001"]


def test_what_was_stopped_failed_or_missed_the_target_is_not_repeated(search: MakeSearch) -> None:
    ends = [evaluated(1000, 0.01), {"status": "failed", "value": None}, completed(None), 0.9]
    assert [r.repeat_of for r in planned(search(sampler="random"), ends, top=3, seeds=2)] == ["t0003"]


def test_of_two_objectives_the_front_comes_first(search: MakeSearch) -> None:
    made = search(sampler="random", kind="updates_and_samples", metric="val/accuracy")
    values = [[10, 1000], [11, 1100], [12, 1200], [40, 300], [90, 200]]
    assert [r.repeat_of for r in planned(made, values, top=3, seeds=2)] == ["t0000", "t0003", "t0004"]


def test_one_seed_repeats_nothing(search: MakeSearch) -> None:
    assert planned(search(sampler="random"), [0.5], top=3, seeds=1) == []


def test_repeats_run_after_the_search_and_are_not_told_to_the_study(search: MakeSearch) -> None:
    made = search(trials=2, sampler="random")
    made.searcher.repeats = lambda: plan_repeats(
        made.searcher.finished, objective=made.objective, top=1, seeds=3, resolve=lambda p, s: made.resolve(p, s)
    )
    configs = made.run(lambda config: completed(0.5))
    assert [config["info"]["phase"] for config in configs] == ["search"] * 2 + ["repeat"] * 2
    assert [config["spec"]["seed"] for config in configs] == [0, 0, 1, 2]
    assert made.states == ["COMPLETE", "COMPLETE"]
