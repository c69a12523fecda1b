"""What a study tells, from runs of a problem whose answer is known: numbers, intervals, sentences, tables, figures."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from study_cost import Synthetic, studied

from orchestrator.config.load import load_spec
from orchestrator.config.study_rules import as_study
from orchestrator.report import study_report
from orchestrator.report.study_figures import write_study_figures
from orchestrator.report.summary import finite_only
from orchestrator.study.outcome import ladder_table, metrics_of, outcome_of
from orchestrator.study.protocol import Protocol
from orchestrator.study.trials import StudyTrial
from orchestrator.study.words import warnings_of
from orchestrator.theory.ladder import LadderConfig, Result
from orchestrator.theory.ladder_planner import Rival
from orchestrator.theory.ladder_summary import summarise

SPACE = """\
task: {name: digits}
objective: {kind: samples_to_target, metric: val/loss, target: 1.0}
budget: {samples: 40000}
optimizer: {name: SGD}
batch: {reference: 8}
lr: {base: 0.5, rule: none, warmup: 0, decay: none}
study: {batches: [2, 8, 64, 256], least_seeds: 3, most_seeds: 4, precision: 0.2, width: 2.0, total_samples: 4000000}
space:
  lr.base: {low: 0.01, high: 10.0, log: true}
"""


CONFIG = {
    "batches": (2, 8, 64, 256),
    "start_lr": 0.5,
    "reference_batch": 8,
    "lr_low": 0.01,
    "lr_high": 10.0,
    "target": 1.0,
    "budget_samples": 40_000,
    "total_samples": 4_000_000,
}


def protocol_in(folder: Path, *overrides: str) -> Protocol:
    path = folder / "space.yaml"
    path.write_text(SPACE)
    spec = as_study(load_spec(path, overrides), file=str(path)).spec
    return Protocol(spec=spec, metric_modes={"loss": "min"}, train_samples=1437)


def told_of_noise(scale: float) -> dict[str, float]:
    """Parts of a noise scale, each known to 5 %."""
    parts = {"trace": 2.0 * scale, "trace_se": 0.1 * scale, "g2": 2.0, "g2_se": 0.1, "correlation": 0.0, "blocks": 20.0}
    return {f"noise_scale_{name}": value for name, value in parts.items()}


def trial_of(number: int, result: Result) -> StudyTrial:
    """A trial that would have given this result, with a noise scale that grows with the samples seen."""
    pairs = [(int(t), v) for t, v in zip(result.curve.samples, result.curve.values, strict=True) if math.isfinite(v)]
    noise = [(10 + t / 100) * (1 + result.run.seed % 7 / 50) for t, _ in pairs]
    evaluations = [
        {"samples_seen": t, "metrics": {"val/loss": v, **told_of_noise(n)}}
        for (t, v), n in zip(pairs, noise, strict=True)
    ]
    return StudyTrial(
        trial=f"t{number:04d}",
        run=result.run,
        rival=Rival(),
        phase=result.run.purpose,
        evaluations=evaluations,
        status={"diverged": "diverged", "budget": "completed"}.get(result.ended, "stopped"),
        outcome={"samples_seen": int(result.samples)},
    )


def outcome_in(folder: Path, problem: Synthetic, *overrides: str) -> dict[str, Any]:
    protocol = protocol_in(folder, *overrides)
    plan = protocol.plan([])
    assert not isinstance(plan, str)
    results, verdict = studied(problem, plan.config)
    found: dict[str, Any] = finite_only(outcome_of(protocol, [*map(trial_of, range(999), results)], verdict))
    json.dumps(found, allow_nan=False)
    return found


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return outcome_in(tmp_path_factory.mktemp("study"), Synthetic(seed_sd=0.04, cliff=2.0))


def test_the_estimates_are_those_of_the_problem(outcome: dict[str, Any]) -> None:
    assert outcome["verdict"] == "done"
    critical = outcome["critical_batch"]
    assert critical["low"] < 28.9 < critical["high"]
    assert critical["value"] == pytest.approx(28.9, rel=0.25)
    assert outcome["emin"]["value"] == pytest.approx(1000.0, rel=0.1)
    assert outcome["smin"]["value"] == pytest.approx(1000.0 / 28.9, rel=0.25)
    for rung in outcome["ladder"]:
        exact = 1000.0 * (1 + rung["global_batch"] / 28.9)
        assert rung["samples_to_target"] == pytest.approx(exact, rel=0.15)
        assert rung["fitted"]["low"] < rung["fitted"]["value"] < rung["fitted"]["high"]
        assert len(rung["seed_samples"]) == rung["seeds"] >= 3


def test_the_noise_scale_stands_beside_the_critical_batch(outcome: dict[str, Any]) -> None:
    noise, critical = outcome["noise_scale"], outcome["critical_batch"]["value"]
    assert noise["global_batch"] in (8, 64)
    (rung,) = [rung for rung in outcome["ladder"] if rung["global_batch"] == noise["global_batch"]]
    assert noise["value"] == pytest.approx(10 + rung["samples_to_target"] / 100, rel=0.15)
    assert noise["low"] < noise["value"] < noise["high"]
    assert noise["ratio_to_critical_batch"] == pytest.approx(noise["value"] / critical)
    path = [point["value"] for point in noise["along_training"]]
    assert len(path) > 5
    assert path == sorted(path)


def test_the_plain_sentence_names_the_three_places(outcome: dict[str, Any]) -> None:
    value = outcome["critical_batch"]["value"]
    for number in (0.2 * value, value, 5 * value):
        assert f"{number:.0f}" in outcome["sentence"]


def test_metrics_are_numbers_and_those_of_a_batch_stand_at_its_step(outcome: dict[str, Any]) -> None:
    found = metrics_of(outcome)
    assert found["metrics"]["study/critical_batch_low"] == outcome["critical_batch"]["low"]
    assert [rung["global_batch"] for rung in found["by_batch"]] == [2, 8, 64, 256]
    assert found["samples_seen"] == outcome["samples"]["spent"]
    values = [*found["metrics"].values(), *(v for rung in found["by_batch"] for v in rung["metrics"].values())]
    assert all(math.isfinite(value) for value in values)


def test_the_ladder_is_a_table(outcome: dict[str, Any]) -> None:
    rows = ladder_table(outcome).to_pylist()
    assert [row["global_batch"] for row in rows] == [2, 8, 64, 256]
    assert [row["fitted_low"] for row in rows] == [rung["fitted"]["low"] for rung in outcome["ladder"]]
    empty = ladder_table({})
    assert empty.schema == ladder_table(outcome).schema
    assert empty.num_rows == 0


def test_figures_are_drawn(outcome: dict[str, Any], tmp_path: Path) -> None:
    paths = write_study_figures(outcome, "made", tmp_path / "figures")
    assert [path.name for path in paths] == ["to_target_by_batch.png", "lr_by_batch.png", "noise_scale.png"]
    for path in paths:
        with Image.open(path) as image:
            assert image.size[0] > 800
            assert len(image.convert("RGB").getcolors(1 << 20)) > 50


def test_the_report_ends_with_the_run_directory(outcome: dict[str, Any], tmp_path: Path) -> None:
    with (tmp_path / "out.txt").open("w+") as file:
        out = Console(file=file, width=80, highlight=False, color_system=None)
        study_report.write(out, outcome, "/some/run directory")
        file.seek(0)
        text = file.read()
    assert text.splitlines()[-1] == "/some/run directory"
    assert "critical batch" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_target_that_is_reached_at_one_batch_only_gives_no_number(tmp_path: Path) -> None:
    class Short(Synthetic):
        """Only the smallest batch reaches the target."""

        def evaluations(self, global_batch: int, lr: float, seed: int) -> Any:
            for t, value in super().evaluations(global_batch, lr, seed):
                yield t, value if global_batch == 2 else value + 1.5

    found = outcome_in(tmp_path, Short(), "study.batches=[2, 8, 64]", "budget.samples=8000", "batch.reference=2")
    assert found["critical_batch"]["value"] is None
    assert found["critical_batch"]["verdict"] in ("too few batches", "unreachable")
    assert found["sentence"].startswith("The critical batch is not determined")
    assert [rung["samples_to_target"] is not None for rung in found["ladder"]][:1] == [True]
    assert all("study/critical_batch" not in name for name in metrics_of(found)["metrics"])


def failed(trial: StudyTrial, number: int) -> StudyTrial:
    return dataclasses.replace(
        trial, trial=f"t{number:04d}", status="failed", evaluations=[], outcome={"samples_seen": 0, "reason": "no room"}
    )


def test_a_batch_whose_run_failed_again_is_left_out_unless_it_was_trained_later(tmp_path: Path) -> None:
    protocol = protocol_in(tmp_path)
    plan = protocol.plan([])
    assert not isinstance(plan, str)
    config = dataclasses.replace(plan.config, batches=(2, 8, 64))
    results, verdict = studied(Synthetic(seed_sd=0.04, cliff=2.0), config)
    trials = [*map(trial_of, range(999), results)]
    run = dataclasses.replace(trials[0].run, global_batch=256)
    gone = [failed(dataclasses.replace(trials[0], run=run), 900 + n) for n in range(2)]
    found = outcome_of(protocol, [*trials, *gone], verdict)
    assert [rung["global_batch"] for rung in found["ladder"]] == [2, 8, 64, 256]
    assert found["ladder"][-1]["reason"].endswith("no room")
    assert found["critical_batch"]["value"] is not None
    assert found["warnings"][0].startswith("batch 256 is left out: a run failed 2 times (batch 256, learning rate")
    assert ladder_table(found).num_rows == 4
    # A single failure is nothing, and so are two that another process got over.
    for rest in (gone[:1], [*gone, dataclasses.replace(trials[0], trial="t0999", run=run)]):
        assert not any("left out" in text for text in outcome_of(protocol, [*trials, *rest], verdict)["warnings"])
    runs = [dataclasses.replace(run, global_batch=batch) for batch in (2, 8, 64, 256)]
    every = [failed(dataclasses.replace(gone[0], run=one), n) for one in runs for n in (1, 2)]
    assert "no room" in outcome_of(protocol, every, None)["sentence"]


def test_what_is_cut_says_so(tmp_path: Path) -> None:
    protocol = protocol_in(tmp_path)
    found = outcome_of(protocol, [], None)
    assert found["verdict"] == "unfinished"
    chosen = dataclasses.replace(
        protocol, spec=protocol.spec.model_copy(update={"objective": type(protocol.spec.objective)()})
    )
    found = outcome_of(chosen, [], None)
    assert (found["verdict"], found["warnings"]) == ("unfinished", [])
    assert metrics_of(found) == {}


def test_a_rule_of_thumb_that_the_exponent_rules_out_is_told(tmp_path: Path) -> None:
    found = outcome_in(tmp_path, Synthetic(seed_sd=0.04, cliff=2.0, exponent=0.4))
    assert "linear" in found["lr_exponent"]["ruled_out"]
    assert any("rule 'linear', the usual one for SGD, is ruled out" in warning for warning in found["warnings"])


def test_linear_with_an_adaptive_optimizer_against_the_evidence_and_a_stretched_law_are_warned_of() -> None:
    config = LadderConfig(**CONFIG)  # type: ignore[arg-type]
    found = summarise(config, studied(Synthetic(seed_sd=0.04, cliff=2.0, exponent=0.4), config)[0])
    told = warnings_of(found, "AdamW")
    assert any("rule 'linear' with AdamW" in warning and "against an exponent" in warning for warning in told)
    (stretched,) = [warning for warning in told if "do not stretch it" in warning]
    assert "measured over batches 2 to 8" in stretched
    assert "times the best at 256" in stretched
    assert not any("with SGD, whose steps" in warning for warning in warnings_of(found, "SGD"))


def test_a_range_of_learning_rates_that_binds_is_named() -> None:
    config = LadderConfig(**CONFIG | {"lr_high": 0.9})  # type: ignore[arg-type]
    found = summarise(config, studied(Synthetic(seed_sd=0.04, cliff=2.0), config)[0])
    told = [warning for warning in warnings_of(found, "SGD") if "space.lr.base" in warning]
    assert [warning.partition(":")[0] for warning in told] == ["batch 64", "batch 256"]
    assert all("above the largest of space.lr.base" in warning for warning in told)
