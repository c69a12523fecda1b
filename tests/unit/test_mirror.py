"""A growing file on a filesystem that cannot append: what was acknowledged is there, whatever was cut."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import StorageError
from orchestrator.mirror import Mirror, mirrored, restore
from orchestrator.search.objective import Objective
from orchestrator.search.searcher import open_study
from orchestrator.tracking.events import EventLog, read_events


@given(pieces=st.lists(st.binary(max_size=40), max_size=8), cut=st.integers(0, 7))
def test_pieces_add_up_to_the_file_also_over_two_processes(
    pieces: list[bytes], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("mirror")
    path, there = folder / "log", str(folder / "there")
    path.touch()
    mirror = Mirror(path, there)
    for at, piece in enumerate(pieces):
        if at == cut:
            mirror = Mirror(path, there, sent=path.stat().st_size)
        with path.open("ab") as file:
            file.write(piece)
        mirror.push()
    assert mirrored(there, "log") == bool(b"".join(pieces))
    (folder / "back").mkdir()
    assert restore(there, folder / "back" / "log") == bool(b"".join(pieces))
    assert (folder / "back" / "log").read_bytes() == b"".join(pieces)


def test_a_missing_piece_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one")
    mirror = Mirror(path, str(tmp_path / "there"))
    mirror.push()
    path.write_bytes(b"onetwo")
    mirror.push()
    (tmp_path / "there" / "log.d" / f"{0:016d}").unlink()
    with pytest.raises(StorageError, match="bytes 0 to 3 are missing"):
        restore(str(tmp_path / "there"), path)


def test_an_event_is_elsewhere_too_before_it_counts(tmp_path: Path) -> None:
    there = tmp_path / "there"
    with EventLog(tmp_path / "events.jsonl", str(there)) as log:
        log.append("evaluation", samples_seen=8)
        (tmp_path / "b").mkdir()
        restore(str(there), tmp_path / "b" / "events.jsonl")
        assert [e["samples_seen"] for e in read_events(tmp_path / "b" / "events.jsonl")] == [8]
        (there / "events.jsonl.d").rename(tmp_path / "away")
        (there / "events.jsonl.d").write_text("no folder")
        with pytest.raises(StorageError, match="must stay writable"):
            log.append("evaluation", samples_seen=16)
    assert [e["samples_seen"] for e in read_events(tmp_path / "events.jsonl")] == [8], (
        "what is not there did not happen"
    )


def test_a_study_comes_back_from_its_mirror(tmp_path: Path) -> None:
    objective = Objective(kind="best_metric", metric="val/loss", mode="min", target=None)
    there = str(tmp_path / "there")
    study = open_study(tmp_path / "study.journal", "s", objective, there)
    study.tell(study.ask({"x": optuna.distributions.FloatDistribution(0, 1)}), 0.5)
    (tmp_path / "b").mkdir()
    assert restore(there, tmp_path / "b" / "study.journal")
    again = open_study(tmp_path / "b" / "study.journal", "s", objective, there)
    assert [trial.value for trial in again.trials] == [0.5]
    again.ask()
    (tmp_path / "c").mkdir()
    restore(there, tmp_path / "c" / "study.journal")
    assert len(open_study(tmp_path / "c" / "study.journal", "s", objective).trials) == 2
