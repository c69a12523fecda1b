"""Sweeps that were cut at other moments, or are taken on in another way; and what cannot be taken on."""

from __future__ import annotations

import copy
import json
import shutil
import time
from pathlib import Path

import pytest
from chaos import Fault, Sweep, faults_of, histories, strike
from sweeps import SHORT, summary_of

from orchestrator import sweep


def test_a_sweep_cut_before_its_first_event_is_taken_on(calm: Sweep, tmp_path: Path) -> None:
    cut = Sweep(tmp_path / "sweep", 2, 30.0, **SHORT)
    while not (cut.out / "spec.yaml").exists():
        time.sleep(0.01)
    cut.process.kill()
    cut.process.wait()
    assert cut.events() == []
    assert cut.finish() == (0, True), (cut.folder / "output.txt").read_text()
    assert faults_of(cut, histories(calm.events())) == []


def test_a_sweep_cut_after_its_last_trial_is_taken_on(calm: Sweep, tmp_path: Path) -> None:
    cut = copy.copy(calm)
    cut.folder, cut.out = tmp_path, tmp_path / "run"
    shutil.copytree(calm.out, cut.out)
    (cut.out / "summary.json").unlink()
    lines = (cut.out / "events.jsonl").read_bytes().splitlines(keepends=True)
    last = max(at for at, line in enumerate(lines) if b'"trial_ended"' in line)
    record = b"".join(lines[: last + 1])
    (cut.out / "events.jsonl").write_bytes(record)
    cursor = json.loads((cut.out / "mlflow_cursor.json").read_text())  # MLflow has nothing that the record has not
    (cut.out / "mlflow_cursor.json").write_text(json.dumps({**cursor, "offset": len(record)}))
    cut.process = cut.take_on()
    assert cut.process.wait(200) == 0, (cut.folder / "output.txt").read_text()
    assert faults_of(cut, histories(calm.events())) == []
    assert summary_of(cut.out)["status"] == "done"
    assert not [event for event in cut.events()[last + 1 :] if event["event"] in ("trial_started", "evaluation")]


def test_a_finished_sweep_has_nothing_to_take_on(calm: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    before = len(calm.events())
    assert sweep.main(["--resume", str(calm.out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(calm.out)
    assert len(calm.events()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume", "{empty}"], "holds no sweep"),
        (["--resume", "{run}", "--set", "lr.base=0.5"], "lr.base"),
        (
            ["--resume", "{run}", "--set", "cluster.workers=3"],
            "Nearest feasible: 15 = micro 5 x accumulation 1 x world 3",
        ),
        (["space.yaml", "--resume", "{run}"], "Leave out SPACE.yaml"),
    ],
)
def test_what_cannot_be_taken_on_is_refused(
    arguments: list[str], message: str, calm: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main([word.format(run=calm.out, empty=tmp_path) for word in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_cut_sweep_goes_on_with_other_workers(calm: Sweep, tmp_path: Path) -> None:
    cut = Sweep(tmp_path / "sweep", 2, 0.0, **SHORT)
    strike(cut, Fault("driver", 20, 0.0, 2, 0.0))
    cut.process.wait()
    cut.process = cut.take_on("--set", "cluster.workers=1")
    assert cut.process.wait(200) == 0, (cut.folder / "output.txt").read_text()
    alone, together = histories(cut.events()), histories(calm.events())
    # TPE sees losses that differ in their last digits, so its later suggestions may differ as well.
    assert len(alone) == len(together)
    for text in alone.keys() & together.keys():
        history = alone[text]
        assert [samples for samples, _ in history] == [samples for samples, _ in together[text]]
        for (_, mine), (_, theirs) in zip(history, together[text], strict=True):
            assert mine["val/loss"] == pytest.approx(theirs["val/loss"], rel=1e-3)
