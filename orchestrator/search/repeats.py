"""Which settings are trained again under other seeds: pure, from the finished search to a list of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.config.trial import TrialSpec
from orchestrator.search.objective import Objective
from orchestrator.search.searcher import Suggestion


def plan_repeats(
    finished: Sequence[tuple[Suggestion, Mapping[str, Any]]],
    *,
    objective: Objective,
    top: int,
    seeds: int,
    resolve: Callable[[Mapping[str, Any], int], TrialSpec],
) -> list[Suggestion]:
    """The runs that repeat the `top` best settings until each has been trained under `seeds` seeds.

    Args:
        finished: the search's suggestions and how they ended; the run of the search counts as the first seed.
        objective: what is best; of two objectives the first one decides.
        top: settings to repeat.
        seeds: seeds a setting, at least 1.
        resolve: from parameters and a seed to a run.
    """
    valued = [
        (suggestion, ended["value"])
        for suggestion, ended in finished
        if suggestion.phase == "search" and ended["status"] != "stopped" and ended.get("value") is not None
    ]
    sign = 1.0 if objective.directions[0] == "minimize" else -1.0
    valued.sort(key=lambda pair: sign * (pair[1][0] if isinstance(pair[1], list | tuple) else pair[1]))
    return [
        Suggestion(
            trial=f"{best.trial}-seed{best.spec.seed + offset}",
            number=best.number,
            params=best.params,
            spec=resolve(best.params, best.spec.seed + offset),
            phase="repeat",
            repeat_of=best.trial,
        )
        for best, _ in valued[:top]
        for offset in range(1, seeds)
    ]
