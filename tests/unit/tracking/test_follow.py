"""A follower hands on every event of a log once and in order, whatever its listeners do."""

from __future__ import annotations

import threading
from pathlib import Path

from orchestrator.tracking.events import Event, EventLog
from orchestrator.tracking.follow import Follower


class Seen:
    """Collects the trials of the events that it is told; `enough` is set at the `count`-th."""

    def __init__(self, count: int = 1) -> None:
        self.trials: list[str] = []
        self._count, self.enough = count, threading.Event()

    def __call__(self, event: Event) -> None:
        self.trials.append(event["trial"])
        if len(self.trials) >= self._count:
            self.enough.set()


def test_events_come_once_and_in_order_while_the_log_grows(tmp_path: Path) -> None:
    path, seen = tmp_path / "events.jsonl", Seen(2)
    with Follower(path, [seen]), EventLog(path) as log:  # the log does not exist yet when it starts
        for name in "ab":
            log.append("trial_started", trial=name)
        assert seen.enough.wait(30)
        for number in range(50):
            log.append("trial_started", trial=str(number))
    assert seen.trials == ["a", "b", *map(str, range(50))]


def test_closing_hands_over_what_is_left_and_may_be_done_twice(tmp_path: Path) -> None:
    seen = Seen()
    with EventLog(tmp_path / "events.jsonl") as log:
        follower = Follower(log.path, [seen])
        with follower:
            log.append("trial_started", trial="last")
        follower.close()
    assert seen.trials == ["last"]
    assert not follower.is_alive()


def test_a_listener_that_raises_is_called_again_and_the_others_too(tmp_path: Path) -> None:
    calls: list[str] = []

    def broken(event: Event) -> None:
        calls.append(event["trial"])
        raise RuntimeError("no terminal")

    seen = Seen()
    with EventLog(tmp_path / "events.jsonl") as log, Follower(log.path, [broken, seen]):
        for name in "abc":
            log.append("trial_started", trial=name)
    assert calls == seen.trials == ["a", "b", "c"]


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path, seen = tmp_path / "events.jsonl", Seen()
    path.write_bytes(b'{"event":"trial_started","trial":"a"}\n{"event":"trial_st')
    with Follower(path, [seen]):
        assert seen.enough.wait(30)
        with path.open("ab") as file:
            file.write(b'arted","trial":"b"}\n')
    assert seen.trials == ["a", "b"]


def test_without_a_log_there_is_nothing_to_follow(tmp_path: Path) -> None:
    seen = Seen()
    with Follower(tmp_path / "never.jsonl", [seen]):
        pass
    assert seen.trials == []
