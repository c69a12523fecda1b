"""Which settings are trained again under other seeds: pure, from the finished search to a list of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
        objective: what is best; of two objectives, those that no other beats at both, by the first one.
        top: settings to repeat.
        seeds: seeds a setting, at least 1.
        resolve: from parameters and a seed to a run.
    """
    valued = [
        (suggestion, ended["value"])
        for suggestion, ended in finished
        if suggestion.phase == "search" and ended["status"] != "stopped" and ended.get("value") is not None
    ]
    costs = {best.trial: _costs(value, objective) for best, value in valued}
    valued.sort(key=lambda pair: (_beaten(costs[pair[0].trial], costs.values()), costs[pair[0].trial]))
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


def _costs(value: Any, objective: Objective) -> tuple[float, ...]:
    """Values turned such that less is better."""
    values = value if isinstance(value, list | tuple) else (value,)
    return tuple(v if d == "minimize" else -v for v, d in zip(values, objective.directions, strict=True))


def _beaten(costs: tuple[float, ...], others: Iterable[tuple[float, ...]]) -> int:
    """How many of `others` are at least as good at everything and better at something."""
    return sum(other != costs and all(o <= c for o, c in zip(other, costs, strict=True)) for other in others)
