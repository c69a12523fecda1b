"""What the post office does when gangs break, leave, or never come back."""

from __future__ import annotations

import asyncio

from posts import INFO, SPEC, ListJournal, evaluation, last_loss, outcome, run

from orchestrator.cluster.mailbox import MAX_BREAKS, Mailbox


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
        for _ in range(MAX_BREAKS):
            token = await box.hello(0, [])
            assert (await box.take(0, token, 1) or {})["trial"] == "poison"
        token = await box.hello(0, [])
        assert (await box.take(0, token, 1) or {})["trial"] == "good"

    run(story())
    (ended,) = journal.of("trial_ended")
    assert ended["status"] == "failed"
    assert f"broke {MAX_BREAKS} times" in ended["reason"]


def test_when_no_gang_is_left_trials_have_no_end_and_wait_for_who_takes_the_sweep_on(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 2)
        await box.submit("a", SPEC, INFO)
        await box.give_up(0, "no module")
        assert (await box.status())["broken"] is None
        await box.give_up(1, "no module")
        await box.submit("b", SPEC, INFO)
        assert (await box.status())["broken"] == "no module"
        for trial in "ab":
            assert await box.next_message(trial) == {"interrupted": "no module", "over": True}

    run(story())
    assert not journal.of("trial_ended")


def test_a_stopped_trial_keeps_its_counts_when_its_gang_breaks(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        token = await box.hello(0, [])
        await box.submit("a", SPEC, INFO)
        await box.take(0, token, 1)
        await box.report(0, token, "a", evaluation(16))
        await box.cancel("a", "asha")
        await box.hello(0, [])

    run(story())
    (ended,) = journal.of("trial_ended")
    assert (ended["outcome"]["samples_seen"], ended["outcome"]["updates"]) == (16, 2)


def test_trials_that_break_their_gang_one_after_another_do_not_end_the_sweep(journal: ListJournal) -> None:
    """Also where every trial has a gang of its own (isolation: fresh), and a break is the end of a run."""

    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        for trial in ("poison", "venom", "good"):
            await box.submit(trial, SPEC, INFO)
        taken = []
        for _ in range(2 * MAX_BREAKS):
            token = await box.hello(0, [])
            taken.append((await box.take(0, token, 1) or {})["trial"])
            await box.gang_failed(0, "segmentation fault")
        assert taken == ["poison"] * MAX_BREAKS + ["venom"] * MAX_BREAKS
        token = await box.hello(0, [])
        assert (await box.take(0, token, 1) or {})["trial"] == "good"

    run(story())
    assert [event["trial"] for event in journal.of("trial_ended")] == ["poison", "venom"]


def test_one_gang_of_two_dies_and_the_other_takes_its_trial(journal: ListJournal) -> None:
    async def story() -> None:
        box = Mailbox(journal, last_loss, 2)
        tokens = [await box.hello(gang, []) for gang in range(2)]
        await box.submit("a", SPEC, INFO)
        await box.take(0, tokens[0], 1)
        waiting = asyncio.create_task(box.take(1, tokens[1], 5))
        await asyncio.sleep(0)
        await box.gang_failed(0, "no room")
        await box.give_up(0, "no room")
        assert (await waiting or {})["trial"] == "a"
        assert (await box.status())["broken"] is None
        await box.finish(1, tokens[1], "a", outcome())
        assert not (await box.next_message("a"))["over"]

    run(story())
    assert [event["status"] for event in journal.of("trial_ended")] == ["completed"]


def test_a_question_that_a_dead_incarnation_left_behind_loses_no_trial(journal: ListJournal) -> None:
    """Its worker died while it waited; the trial that it is answered with goes on to the next incarnation."""

    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        old = await box.hello(0, [])
        asyncio.create_task(box.take(0, old, 5))  # noqa: RUF006  nobody is there to hear the answer
        await asyncio.sleep(0)
        await box.submit("a", SPEC, INFO)
        await asyncio.sleep(0.01)
        new = await box.hello(0, [])
        assert (await box.take(0, new, 1) or {})["trial"] == "a"

    run(story())


def test_a_gang_that_broke_before_its_first_trial_does_not_warm_up_again(journal: ListJournal) -> None:
    """What it trained to warm up may have been what broke it."""

    async def story() -> None:
        box = Mailbox(journal, last_loss, 1)
        await box.hello(0, [])
        assert await box.may_warm_up(0)
        token = await box.hello(0, [])
        assert not await box.may_warm_up(0)
        await box.submit("a", SPEC, INFO)
        await box.take(0, token, 1)
        await box.hello(0, [])
        assert await box.may_warm_up(0)

    run(story())
