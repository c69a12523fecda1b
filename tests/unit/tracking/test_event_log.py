from __future__ import annotations

import json
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tracking_samples import Sweep

from orchestrator.errors import StorageError
from orchestrator.tracking.events import EventLog, first_event, read_events, read_lines


def test_an_event_is_on_disk_when_append_returns(log: EventLog) -> None:
    written = log.append("evaluation", trial="t0001", samples_seen=np.int64(64), metrics={"val/loss": np.float32(0.5)})
    assert read_events(log.path) == [written]
    assert written["samples_seen"] == 64
    assert written["metrics"] == {"val/loss": 0.5}
    assert written["t"] > 1.7e9


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_a_number_that_is_not_finite_is_refused_and_nothing_is_written(log: EventLog, bad: float) -> None:
    log.append("sweep_ended", status="done")
    with pytest.raises(ValueError, match="every number must be finite"):
        log.append("evaluation", metrics={"val/loss": bad})
    assert [event["event"] for event in read_events(log.path)] == ["sweep_ended"]


def test_what_has_no_json_form_is_refused(log: EventLog) -> None:
    with pytest.raises(TypeError, match="no JSON form"):
        log.append("evaluation", metrics={"val/loss": np.zeros(2)})


def test_threads_write_whole_lines_each_in_its_own_order(log: EventLog) -> None:
    def work(thread: int) -> None:
        for number in range(50):
            log.append("evaluation", thread=thread, number=number, text="x" * 500)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = read_events(log.path)
    assert len(events) == 400
    for thread in range(8):
        assert [event["number"] for event in events if event["thread"] == thread] == list(range(50))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(share=st.integers(0, 1000))
def test_a_log_cut_off_anywhere_keeps_its_whole_lines_and_takes_new_ones(
    tmp_path_factory: pytest.TempPathFactory, share: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "events.jsonl"
    with EventLog(path) as log:
        for number in range(4):
            log.append("evaluation", number=number, text="ß" * number)
    whole = path.read_bytes()
    cut = len(whole) * share // 1000
    path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    assert [event["number"] for event in read_events(path)] == list(range(kept))
    with EventLog(path) as log:
        log.append("evaluation", number=9)
    assert [event["number"] for event in read_events(path)] == [*range(kept), 9]


def test_a_broken_line_before_the_last_is_not_passed_over(log: EventLog) -> None:
    log.append("sweep_ended", status="done")
    log.close()
    good = log.path.read_bytes()
    log.path.write_bytes(good + b'{"event": "eval\n' + good)
    with pytest.raises(StorageError, match=f"byte {len(good)} must be one JSON object") as refused:
        read_events(log.path)
    assert str(log.path) in str(refused.value)
    with pytest.raises(StorageError):
        EventLog(log.path)
    assert log.path.read_bytes() == good + b'{"event": "eval\n' + good


def test_a_last_line_of_garbage_is_taken_as_torn(log: EventLog) -> None:
    log.append("sweep_ended", status="done")
    log.close()
    with log.path.open("ab") as file:
        file.write(b"\0" * 40 + b"\n")
    assert len(read_events(log.path)) == 1


def test_lines_can_be_read_in_parts(log: EventLog, sweep: Sweep) -> None:
    sweep.start()
    sweep.whole_trial(0)
    first = read_lines(log.path, limit=3)
    rest = read_lines(log.path, first[-1].end)
    assert [line.event for line in first + rest] == read_events(log.path)
    assert rest[-1].end == log.size_bytes == log.path.stat().st_size
    ended = first_event(log.path, "trial_ended")
    assert ended is not None
    assert ended["trial"] == "t0000"
    assert first_event(log.path, "sweep_ended") is None


def test_a_full_disk_is_an_error_that_leaves_the_log_whole(log: EventLog) -> None:
    log.append("sweep_started", name="x")
    before = log.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"must stay writable.*Free space"):
            log.append("evaluation", text="x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert log.path.read_bytes() == before
    log.append("sweep_ended", status="failed")
    assert [json.loads(line)["event"] for line in log.path.open()] == ["sweep_started", "sweep_ended"]


def test_a_second_writer_is_refused(log: EventLog) -> None:
    with pytest.raises(StorageError, match="only one sweep at a time"):
        EventLog(log.path)
    log.close()
    EventLog(log.path).close()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="must be writable"):
        EventLog(tmp_path / "file" / "events.jsonl")
