"""The post office's contract, in a plain event loop: order, verdicts, nothing twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from posts import INFO, SPEC, ListJournal, evaluation, last_loss, outcome, run

from orchestrator.cluster.mailbox import Mailbox
from orchestrator.errors import StorageError
from orchestrator.tracking.events import EventLog, read_events


def test_a_trial_goes_to_a_gang_and_its_evaluations_come_back_in_order(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        token = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        assert await box.take(0, token, 1) == {"trial": "a", "spec": SPEC, "again": ""}
        assert not await box.report(0, token, "a", evaluation(8))
        assert not await box.report(0, token, "a", evaluation(16))
        await box.finish(0, token, "a", outcome())
        assert [(await box.next_message("a", after))["samples_seen"] for after in (-1, -1, 8)] == [8, 8, 16]
        assert (await box.next_message("a", 16))["value"] == 1 / 16
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


def test_close_sends_every_waiting_gang_home(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 2)
        tokens = [await box.hello(gang, []) for gang in range(2)]
        waiting = [asyncio.create_task(box.take(gang, tokens[gang], 5)) for gang in range(2)]
        await asyncio.sleep(0.01)
        await box.close()
        assert await asyncio.gather(*waiting) == [{"close": True}] * 2

    run(story())


class FullDisk(ListJournal):
    """Refuses everything from the event `full_at` on."""

    def __init__(self, full_at: str) -> None:
        super().__init__()
        self._full_at, self._full = full_at, False

    def append(self, event: str, **fields: Any) -> None:
        self._full = self._full or event == self._full_at
        if self._full:
            raise StorageError("the record of the sweep must stay writable (No space left on device)")
        super().append(event, **fields)


@pytest.mark.parametrize("full_at", ["trial_started", "evaluation", "trial_ended"])
def test_a_record_that_cannot_be_written_ends_every_trial_instead_of_hanging_it(full_at: str) -> None:
    async def story() -> None:
        box = Mailbox(FullDisk(full_at), last_loss, 1)
        token = await box.hello(0, [])
        for trial in "ab":
            await box.submit(trial, SPEC, INFO)
        if full_at != "trial_started":
            await box.take(0, token, 1)
            await box.report(0, token, "a", evaluation(8))
            await box.finish(0, token, "a", outcome())
        for trial in "ab":
            message = await box.next_message(trial)
            message = message if "over" in message else await box.next_message(trial, 8)
            assert "No space left" in message["interrupted"]
            assert message["over"]
        assert await box.take(0, token, 1) == {"close": True}
        assert "No space left" in (await box.status())["lost"]
        assert await box.wait_until_idle(1)

    run(story())


def test_an_outcome_that_has_no_record_fails_its_trial_and_not_its_gang(tmp_path: Path) -> None:
    async def story(log: EventLog) -> None:
        box = Mailbox(log, last_loss, 1)
        token = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        await box.take(0, token, 1)
        await box.finish(0, token, "a", {**outcome(), "first_grad_norms": [float("inf")]})
        said = await box.next_message("a")
        assert (said["outcome"]["status"], said["value"], said["over"]) == ("failed", None, False)
        await box.submit("b", SPEC, INFO)
        assert (await box.take(0, token, 1) or {})["trial"] == "b"

    with EventLog(tmp_path / "events.jsonl") as log:
        run(story(log))
    (ended,) = [event for event in read_events(log.path) if event["event"] == "trial_ended"]
    assert "finite" in ended["reason"]


@pytest.mark.parametrize("status", ["completed", "target_reached", "diverged", "failed"])
def test_a_trial_told_to_stop_counts_as_stopped_whatever_its_gang_still_did(journal: ListJournal, status: str) -> None:
    """The search was told so; whether the gang hears of it before the budget is up is a matter of milliseconds."""

    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        token = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        await box.take(0, token, 1)
        await box.report(0, token, "a", evaluation(8))
        assert await box.cancel("a", "asha")
        await box.finish(0, token, "a", outcome(status))
        assert not await box.cancel("a", "race"), "it has ended"

    run(story())
    (ended,) = journal.of("trial_ended")
    assert (ended["status"], ended["stopped_by"]) == ("stopped", "asha")
    assert status in ended["reason"]


def test_a_trial_that_ended_by_itself_cannot_be_cancelled(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        token = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        await box.take(0, token, 1)
        await box.finish(0, token, "a", outcome())
        assert not await box.cancel("a", "asha")
        assert not await box.cancel("unknown", "asha")

    run(story())
    assert [event["status"] for event in journal.of("trial_ended")] == ["completed"]


def test_a_trial_that_nobody_follows_any_more_fails(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        token = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        await box.take(0, token, 1)
        assert await box.cancel("a", None)
        assert await box.report(0, token, "a", evaluation(8))
        await box.finish(0, token, "a", outcome("stopped"))

    run(story())
    (ended,) = journal.of("trial_ended")
    assert (ended["status"], ended["stopped_by"], ended["value"]) == ("failed", None, None)


def test_a_stopped_trial_that_takes_too_long_ends_once_with_what_is_known(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        token = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        await box.take(0, token, 1)
        await box.report(0, token, "a", evaluation(16))
        await box.cancel("a", "asha")
        assert not await box.wait_until_idle(0.01)
        assert await box.report(0, token, "a", evaluation(24))
        await box.finish(0, token, "a", outcome("stopped"))
        assert await box.wait_until_idle(0.01)
        await box.submit("b", SPEC, INFO)
        assert (await box.take(0, token, 1) or {})["trial"] == "b", "the gang is free again"

    run(story())
    (ended,) = journal.of("trial_ended")
    assert (ended["status"], ended["outcome"]["samples_seen"]) == ("stopped", 16)
    assert len(journal.of("evaluation")) == 1


def test_nothing_is_recorded_after_the_sweep_was_closed(journal: ListJournal) -> None:
    """An interrupted trial has no end: it is left to whoever takes the sweep on."""

    async def story() -> None:
        box = Mailbox(journal, last_loss, 2)
        token = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        await box.take(0, token, 1)
        await box.close()
        before = len(journal.events)
        assert await box.report(0, token, "a", evaluation(8)), "it is told to stop"
        await box.finish(0, token, "a", outcome("stopped"))
        await box.submit("late", SPEC, INFO)
        assert "interrupted" in await box.next_message("late")
        late = await box.hello(1, [])
        assert await box.take(1, late, 1) == {"close": True}
        await box.gang_failed(0, "torn down")
        assert len(journal.events) == before
        await box.append("sweep_ended", {"status": "interrupted"})

    run(story())
    assert [event["event"] for event in journal.events] == ["gang_started", "trial_started", "sweep_ended"]


def test_very_many_gangs_get_every_trial_once(journal: ListJournal) -> None:
    async def work(box: Mailbox, gang: int, done: list[str]) -> None:
        token = await box.hello(gang, [])
        while True:
            job = await box.take(gang, token, 5)
            if job is None:
                continue
            if "close" in job:
                return
            await asyncio.sleep(0)
            await box.report(gang, token, job["trial"], evaluation(8))
            await box.finish(gang, token, job["trial"], outcome())
            done.append(job["trial"])

    async def story() -> None:
        box, done = Mailbox(journal, last_loss, 100), [""][:0]
        gangs = [asyncio.create_task(work(box, gang, done)) for gang in range(100)]
        for number in range(300):
            await box.submit(f"t{number}", SPEC, INFO)
        assert await box.wait_until_idle(8)
        await box.close()
        await asyncio.gather(*gangs)
        assert sorted(done) == sorted(f"t{number}" for number in range(300))

    run(story())
    assert len(journal.of("trial_ended")) == 300


def test_a_trial_that_is_handed_in_twice_is_trained_once(journal: ListJournal) -> None:
    """Tune moves a trial to an actor that is free, and the actor that was started for it hands it in again, later."""

    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        token = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        await box.take(0, token, 1)
        await box.submit("a", SPEC, INFO)
        assert await box.take(0, token, 0.01) is None
        await box.report(0, token, "a", evaluation(8))
        await box.finish(0, token, "a", outcome())
        await box.submit("a", SPEC, INFO)
        assert await box.take(0, token, 0.01) is None
        assert (await box.next_message("a"))["samples_seen"] == 8

    run(story())
    assert [event["event"] for event in journal.events].count("trial_started") == 1
    assert len(journal.of("trial_ended")) == 1
