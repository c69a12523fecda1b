"""``batch.micro: auto``: the limit is what is predicted to fit, every global batch is held, and nonsense is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator import sweep
from orchestrator.config.load import load_spec
from orchestrator.errors import RefusedError
from orchestrator.preparation import Prepared, prepare
from orchestrator.training.memory_ceiling import with_micro_batch
from orchestrator.training.memory_prediction import predict_memory
from orchestrator.training.registry import load_task

SPACE = """\
task: {name: digits, hidden: 64}
batch: {micro: auto}
cluster: {workers: 2}
space: {batch.global: [16, 128, 256]}
"""


def prepared(folder: Path, *overrides: str) -> Prepared:
    path = folder / "space.yaml"
    path.write_text(SPACE)
    return prepare(load_spec(path, overrides), file=str(path))


def test_the_limit_fits_and_one_more_does_not(tmp_path: Path) -> None:
    device, margin = 200 * 1024, 0.15
    found = prepared(tmp_path, f"cluster.device_memory={device}")
    most = found.spec.batch.micro_batch_max
    assert most is not None
    assert any(f"micro batches of up to {most} samples fit" in text for text in found.warnings)
    task = load_task("digits", {"hidden": 64})
    peaks = [predict_memory(with_micro_batch(found.baseline, m), task).peak_bytes for m in (most, most + 1)]
    assert peaks[0] <= device * (1 - margin) < peaks[1]
    for batch in (16, 128, 256):
        plan = found.resolve({"batch.global": batch}).plan
        assert plan.global_batch == batch
        assert plan.micro_batch <= most


def test_the_largest_model_of_the_space_decides(tmp_path: Path) -> None:
    device = "cluster.device_memory=2MiB"
    small, large = (prepared(tmp_path, device, f"task.hidden={h}").spec.batch.micro_batch_max for h in (64, 512))
    both = prepared(tmp_path, device, "space.task.hidden=[64, 512]").spec.batch.micro_batch_max
    assert both == large < small  # type: ignore[operator]


def test_without_a_size_the_device_is_asked_and_the_data_may_end_first(tmp_path: Path) -> None:
    found = prepared(tmp_path)
    assert found.spec.batch.micro_batch_max == 1437 // 2
    assert any("all that a worker has" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("overrides", "key", "rule"),
    [
        (["batch.accumulation=2"], "batch.accumulation", "by as much accumulation as it takes"),
        (["space.batch.micro=[auto]"], "space.batch.micro", "auto finds one limit for all trials"),
        (["cluster.device_memory=20KiB"], "batch.micro", "one sample needs"),
    ],
)
def test_what_cannot_be_meant_or_met_is_refused(overrides: list[str], key: str, rule: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=rule) as caught:
        prepared(tmp_path, *overrides)
    assert caught.value.key == key


def test_the_command_line_refuses_with_exit_code_2(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    assert sweep.main([str(tmp_path / "space.yaml"), "--dry-run", "--set", "cluster.device_memory=1KiB"]) == 2
    assert "python -m orchestrator.probe" in capsys.readouterr().err
