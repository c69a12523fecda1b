from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tracking_samples import Sweep, trial_spec

from orchestrator.errors import StorageError
from orchestrator.tracking.events import read_events
from orchestrator.tracking.results import evaluations_table, trials_table, write_results


@pytest.fixture
def finished(sweep: Sweep) -> Sweep:
    sweep.start()
    sweep.whole_trial(0)
    sweep.whole_trial(1, evaluations=2, status="stopped", stopped_by="race", value=None, reason="cannot win")
    sweep.trial(2)
    sweep.end("t0002", "diverged", 3008, value=0.5, reason="loss is inf")
    sweep.trial(3)
    sweep.evaluate("t0003", 1)
    sweep.log.append("trial_reused", trial="t0004", number=4, params={"batch.global": 16}, of="t0000", value=0.97)
    return sweep


def test_a_row_a_trial_with_every_parameter_and_result(finished: Sweep, tmp_path: Path) -> None:
    write_results(read_events(finished.log.path), tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "trials.parquet")
    rows = {row["trial"]: row for row in table.to_pylist()}
    assert [row["status"] for row in rows.values()] == ["completed", "stopped", "diverged", "running", "reused"]
    first = rows["t0000"]
    assert {name: first[name] for name in ("global_batch", "micro_batch", "accumulation", "world_size")} == {
        "global_batch": 16,
        "micro_batch": 8,
        "accumulation": 1,
        "world_size": 2,
    }
    assert (first["batch.global"], first["lr.base"], first["lr_peak"], first["optimizer"]) == (16, 0.1, 0.05, "SGD")
    assert (first["value"], first["noise_scale"], first["turnaround_s"]) == (0.97, 41.5, 0.15)
    assert (first["samples_to_target"], first["updates_to_target"], first["seconds_to_target"]) == (10000, 625, 1.0)
    assert '"momentum":0.9' in first["spec"]
    assert rows["t0001"]["samples_to_target"] is None
    assert (rows["t0001"]["stopped_by"], rows["t0001"]["reason"]) == ("race", "cannot win")
    assert rows["t0002"]["value"] is None
    assert rows["t0003"]["samples_seen"] == 2000
    assert (rows["t0004"]["reused_from"], rows["t0004"]["value"], rows["t0004"]["train_seconds"]) == (
        "t0000",
        0.97,
        None,
    )


def test_a_row_an_evaluation_with_every_metric(finished: Sweep) -> None:
    table = evaluations_table(read_events(finished.log.path))
    assert table.num_rows == 5 + 2 + 1
    assert table.column("samples_seen").to_pylist()[:5] == [2000, 4000, 6000, 8000, 10000]
    assert table.column("key")[0].as_py() == finished.specs["t0000"].key
    assert table.schema.field("val/accuracy").type == pa.float64()
    assert {"train/loss", "val/loss", "step_ms", "peak_memory_bytes"} <= set(table.column_names)


def test_an_evaluation_that_is_told_twice_counts_once(sweep: Sweep) -> None:
    sweep.start()
    sweep.evaluate(sweep.trial(0), 3)
    sweep.evaluate("t0000", 3, first=2)
    table = evaluations_table(read_events(sweep.log.path))
    assert table.column("samples_seen").to_pylist() == [2000, 4000, 6000, 8000]


def test_two_values_and_mixed_parameters(sweep: Sweep) -> None:
    sweep.start()
    for number, params in enumerate([{"a": 1, "b": 1, "c": True}, {"a": 0.5, "b": "x", "c": False}]):
        sweep.trial(number, params=params)
    sweep.end("t0000", value=[625, 10000])
    table = trials_table(read_events(sweep.log.path))
    assert (table.column("value").to_pylist(), table.column("value_2").to_pylist()) == ([625.0, None], [10000.0, None])
    assert table.column("a").to_pylist() == [1.0, 0.5]
    assert table.column("b").to_pylist() == ["1", "x"]
    assert table.column("c").to_pylist() == [True, False]


def test_a_sweep_without_trials_has_empty_tables_of_the_same_columns(sweep: Sweep, tmp_path: Path) -> None:
    sweep.start()
    write_results(read_events(sweep.log.path), f"file://{tmp_path}/out")
    empty = pq.read_table(tmp_path / "out" / "trials.parquet")
    assert empty.num_rows == 0
    sweep.trial(0, trial_spec())
    sweep.end("t0000")
    one = trials_table(read_events(sweep.log.path))
    assert [field for field in one.schema if field.name in empty.column_names] == list(empty.schema)


def test_tables_that_cannot_be_written_are_refused(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="must be writable"):
        write_results([], tmp_path / "file" / "out")
