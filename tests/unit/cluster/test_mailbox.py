"""The post office's contract, in a plain event loop: order, verdicts, broken gangs, nothing twice."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from orchestrator.cluster.mailbox import MAX_ATTEMPTS, Mailbox
from orchestrator.training.records import Outcome

SPEC = {"plan": {"global_batch": 8}}
INFO: dict[str, Any] = {"number": 0, "key": "k", "params": {}, "phase": "search", "repeat_of": None}


class ListJournal:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def append(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]


def last_loss(evaluations: list[dict[str, Any]], outcome: dict[str, Any]) -> float | None:
    return evaluations[-1]["metrics"]["val/loss"] if evaluations and outcome["status"] == "completed" else None


def evaluation(samples: int) -> dict[str, Any]:
    metrics = {"val/loss": 1 / samples}
    return {"samples_seen": samples, "updates": samples // 8, "metrics": metrics, "train_seconds": 0.1}


def outcome(status: str = "completed", first: float | None = 1.0, last: float | None = 2.0) -> dict[str, Any]:
    base = Outcome(status="completed", samples_seen=16, updates=2, train_seconds=0.2)
    return {**dataclasses.replace(base, first_update_at=first, last_update_at=last).to_dict(), "status": status}


@pytest.fixture
def journal() -> ListJournal:
    return ListJournal()


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def test_a_trial_goes_to_a_gang_and_its_evaluations_come_back_in_order(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        token = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        assert await box.take(0, token, 1) == {"trial": "a", "spec": SPEC}
        assert not await box.report(0, token, "a", evaluation(8))
        assert not await box.report(0, token, "a", evaluation(16))
        await box.finish(0, token, "a", outcome())
        assert [(await box.next_message("a"))["samples_seen"] for _ in range(2)] == [8, 16]
        assert (await box.next_message("a"))["value"] == 1 / 16
        assert await box.wait_until_idle(1)

    run(story())
    kinds = [event["event"] for event in journal.events]
    assert kinds == ["gang_started", "trial_started", "evaluation", "evaluation", "trial_ended"]


def test_a_cancelled_trial_is_told_to_stop_at_its_next_evaluation(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        token = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        await box.take(0, token, 1)
        assert not await box.report(0, token, "a", evaluation(8))
        await box.cancel("a", "asha")
        assert await box.report(0, token, "a", evaluation(16))
        await box.finish(0, token, "a", outcome("stopped"))

    run(story())
    (ended,) = journal.of("trial_ended")
    assert (ended["status"], ended["stopped_by"], ended["value"]) == ("stopped", "asha", None)


def test_a_trial_cancelled_before_it_began_never_reaches_a_gang(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        token = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        await box.cancel("a", "race")
        assert await box.take(0, token, 0.01) is None

    run(story())
    assert journal.of("trial_ended")[0]["stopped_by"] == "race"


def test_turnaround_is_from_last_update_to_the_next_first_update_of_the_same_incarnation(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        token = await box.hello(0, [])
        for trial, first, last in (("a", 1.0, 2.0), ("b", 2.25, 3.0)):
            await box.submit(trial, SPEC, INFO)
            await box.take(0, token, 1)
            await box.finish(0, token, trial, outcome(first=first, last=last))
        token = await box.hello(0, [])
        await box.submit("c", SPEC, INFO)
        await box.take(0, token, 1)
        await box.finish(0, token, "c", outcome(first=9.0, last=9.5))

    run(story())
    assert [event["turnaround_s"] for event in journal.of("trial_ended")] == [None, 0.25, None]


def test_a_trial_survives_its_gang_and_its_repeated_evaluations_count_once(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        old = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        await box.take(0, old, 1)
        await box.report(0, old, "a", evaluation(8))
        new = await box.hello(0, [])
        assert await box.take(0, old, 1) is None
        assert await box.report(0, old, "a", evaluation(16)), "a dead incarnation is told to stop"
        assert (await box.take(0, new, 1) or {})["trial"] == "a"
        for samples in (8, 16):
            assert not await box.report(0, new, "a", evaluation(samples))
        await box.finish(0, new, "a", outcome())

    run(story())
    assert [event["samples_seen"] for event in journal.of("evaluation")] == [8, 16]
    assert len(journal.of("trial_ended")) == 1


def test_a_trial_that_breaks_gang_after_gang_fails_and_the_next_one_runs(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        await box.submit("poison", SPEC, INFO)
        await box.submit("good", SPEC, INFO)
        for _ in range(MAX_ATTEMPTS):
            token = await box.hello(0, [])
            assert (await box.take(0, token, 1) or {})["trial"] == "poison"
        token = await box.hello(0, [])
        assert (await box.take(0, token, 1) or {})["trial"] == "good"

    run(story())
    (ended,) = journal.of("trial_ended")
    assert ended["status"] == "failed"
    assert f"broke {MAX_ATTEMPTS} times" in ended["reason"]


def test_when_no_gang_is_left_every_trial_fails_with_the_reason(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 2)
        await box.submit("a", SPEC, INFO)
        assert not await box.gang_failed(0, "no module", seen_trials=0)
        assert (await box.status())["broken"] is None
        assert not await box.gang_failed(1, "no module", seen_trials=0)
        await box.submit("b", SPEC, INFO)
        assert (await box.status())["broken"] == "no module"
        assert "no module" in (await box.next_message("b"))["outcome"]["reason"]

    run(story())
    assert [event["status"] for event in journal.of("trial_ended")] == ["failed", "failed"]


def test_a_gang_that_did_some_work_is_started_again(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        token = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        await box.take(0, token, 1)
        await box.finish(0, token, "a", outcome())
        assert await box.gang_failed(0, "killed", seen_trials=0)
        assert not await box.gang_failed(0, "killed", seen_trials=1)

    run(story())


def test_close_sends_every_waiting_gang_home(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 2)
        tokens = [await box.hello(gang, []) for gang in range(2)]
        waiting = [asyncio.create_task(box.take(gang, tokens[gang], 5)) for gang in range(2)]
        await asyncio.sleep(0.01)
        await box.close()
        assert await asyncio.gather(*waiting) == [{"close": True}] * 2

    run(story())
