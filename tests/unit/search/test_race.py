"""Early stopping by samples: rungs that every batch size meets, ASHA, and the race."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.search.race import Asha, Race, rungs


@given(
    batches=st.lists(st.sampled_from([16, 48, 64, 256, 1000, 4096]), min_size=1, max_size=4),
    every=st.integers(50, 5000),
    reduction=st.integers(2, 5),
)
def test_every_batch_size_is_judged_at_every_rung(batches: list[int], every: int, reduction: int) -> None:
    """A trial is judged at its first evaluation at or past a rung, whatever its batch: none skips a rung."""
    budget = 40 * max(every, max(batches))
    marks = rungs(lowest_samples=max(batches), budget_samples=budget, eval_every_samples=every, reduction=reduction)
    assert marks
    assert marks[0] >= max(batches)
    for batch in batches:
        seen = [s for s in range(batch, budget + batch, batch) if s // every > (s - batch) // every]
        judged = [next(s for s in seen if s >= mark) for mark in marks]
        assert len(set(judged)) == len(judged), "two rungs judged by one evaluation"
        assert all(s - mark < batch + every for s, mark in zip(judged, marks, strict=True))


def test_asha_keeps_the_best_third() -> None:
    asha = Asha(rungs=[100], reduction=3, mode="min")
    losses = [0.9, 0.5, 0.7, 0.8, 0.3, 0.6]
    stopped = [asha.stops(f"t{i}", 100, loss) for i, loss in enumerate(losses)]
    assert stopped == [False, False, True, True, False, True]


def test_asha_judges_a_trial_once_at_each_rung() -> None:
    asha = Asha(rungs=[100], reduction=2, mode="max")
    for i, value in enumerate((0.9, 0.8)):
        asha.stops(f"t{i}", 128, value)
    assert not asha.stops("t0", 256, 0.0), "judged already"
    assert asha.stops("t2", 64, 0.1) is False, "not yet at the rung"
    assert asha.stops("t2", 128, 0.1)


def test_a_trial_races_only_against_its_own_batch_size() -> None:
    race = Race()
    assert not race.stops(64, 1000, reached=False)
    assert not race.stops(64, 2000, reached=True)
    assert not race.stops(128, 5000, reached=False)
    assert not race.stops(64, 1500, reached=False)
    assert race.stops(64, 2000, reached=False)
    assert not race.stops(64, 1800, reached=True)
    assert race.stops(64, 1800, reached=False)
