"""A search that was cut anywhere goes on as if it had not been: the same suggestions, none of them twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from made_search import Search, completed

Result = dict[str, Any]


def made_up(config: dict[str, Any]) -> Result:
    """A result that depends on the parameters alone; large learning rates fail."""
    lr, batch = config["spec"]["lr"]["peak"], config["spec"]["plan"]["global_batch"]
    if lr > 0.4:
        return {**completed(None), "status": "failed", "metric": None}
    return completed(abs(lr - 0.1) + batch / 1000)


def ending(result: Result) -> Result:
    return {"status": result["status"], "value": result["value"], "last": (4000, result["metric"])}


def params_of(search: Search) -> list[str]:
    return [json.dumps(trial.params, sort_keys=True) for trial in search.study.trials]


@pytest.mark.parametrize("told", [0, 1, 4, 7, 8])
@pytest.mark.parametrize("running", [0, 1])
def test_a_cut_search_suggests_what_it_would_have_suggested(
    search: Callable[..., Search], told: int, running: int
) -> None:
    whole = search(name="whole")
    whole.run(made_up)
    assert {"FAIL", "COMPLETE"} <= set(whole.states)

    cut, endings = search(name="cut"), {}
    for number in range(told):
        config = cut.ask(f"tune{number}")
        result = made_up(config)
        cut.searcher.on_trial_complete(f"tune{number}", result)
        endings[config["trial"]] = ending(result)
    left = [cut.ask("left")["trial"] for _ in range(min(running, 8 - told))]

    on = search(name="cut")
    on.searcher.take_on(endings)
    asked = on.run(made_up)
    assert [config["trial"] for config in asked][: len(left)] == left
    assert not {config["trial"] for config in asked} & endings.keys(), "what has failed has ended, too"
    assert params_of(on) == params_of(whole)
    assert on.states == whole.states


def test_an_ending_that_the_study_was_not_told_of_is_told(search: Callable[..., Search]) -> None:
    cut = search()
    config = cut.ask("tune0")
    on = search()
    on.searcher.take_on({config["trial"]: ending(completed(0.25))})
    assert on.states[0] == "COMPLETE"
    assert on.study.trials[0].value == 0.25
    assert config["trial"] not in {asked["trial"] for asked in on.run(made_up)}
