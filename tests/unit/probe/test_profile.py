"""Profiles: what is kept is found again, and only what moved beyond noise is told."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from records import seconds, timed

from orchestrator.errors import StorageError
from orchestrator.probe import profile, speed
from orchestrator.theory.geometry import Geometry

GEOMETRIES = [Geometry(micro_batch=2**k) for k in range(8)]


def made(*, seed: int, slower: float = 1.0, day: int = 1, **parts: Any) -> dict[str, Any]:
    found = speed.timed_of(timed(GEOMETRIES, lambda g: slower * seconds(g), noise=0.03, seed=seed))
    return {
        "at": f"2026-11-{day:02d}T02:00:00+00:00",
        "key": parts.get("key", "k"),
        "hardware": parts.get("hardware", "a"),
        "framework": "f",
        "model": "m",
        "software": {"torch": parts.get("torch", "2.13")},
        "timings": [{**speed.plain(g), "rounds_s": list(one.medians.values())} for g, one in found.items()],
        "memory": [{"micro_batch": 8, "peak_bytes": parts.get("peak", 1000)}],
    }


def test_what_is_kept_is_found_again_the_oldest_first(tmp_path: Path) -> None:
    folder = str(tmp_path / "profiles")
    assert profile.kept(folder) == []
    later, earlier = made(seed=1, day=2), made(seed=2, day=1)
    profile.keep(folder, later, "digits")
    profile.keep(folder, earlier, "digits")
    assert profile.kept(folder) == [earlier, later]
    (tmp_path / "profiles" / "broken.json").write_text("{")
    with pytest.raises(StorageError, match=r"broken\.json"):
        profile.kept(folder)


@pytest.mark.parametrize("runs", [1, 4])
def test_a_slower_machine_is_told_and_noise_is_not(runs: int) -> None:
    earlier = [made(seed=seed, day=1 + seed) for seed in range(runs)]
    held = profile.compare(made(seed=100), earlier)
    assert held["moved"] == []
    assert f"{runs} earlier profile" in profile.sentences(held)[0]
    halved = profile.compare(made(seed=100, slower=2.0, torch="2.14"), earlier)
    assert len(halved["moved"]) == len(GEOMETRIES)
    assert all(one["factor"]["value"] == pytest.approx(2.0, rel=0.1) for one in halved["moved"])
    assert halved["changed"] == {"software": [{"torch": "2.13"}, {"torch": "2.14"}]}


def test_false_alarms_are_as_rare_as_said() -> None:
    alarms = 0
    for trial in range(100):
        earlier = [made(seed=1000 * trial + seed) for seed in range(4)]
        alarms += bool(profile.compare(made(seed=1000 * trial + 900), earlier)["moved"])
    assert alarms <= 12  # 5 expected; more than 12 come once in 500


def test_without_a_profile_of_the_same_key_the_same_model_elsewhere_is_compared() -> None:
    other = made(seed=0, key="other", hardware="b")
    found = profile.compare(made(seed=1, slower=3.0), [other])
    assert found["changed"]["hardware"] == ["b", "a"]
    assert len(found["moved"]) == len(GEOMETRIES)
    strange = copy.deepcopy(other) | {"model": "another"}
    assert profile.compare(made(seed=1), [strange])["reason"] == "no earlier profile of this model was kept"


def test_memory_has_no_noise() -> None:
    found = profile.compare(made(seed=0, peak=1001), [made(seed=0)])
    assert [one["what"] for one in found["moved"]] == ["predicted peak memory"]
