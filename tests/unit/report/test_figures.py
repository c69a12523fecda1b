from __future__ import annotations

import subprocess
import sys

import pytest
from PIL import Image

from orchestrator.report.figures import best_by_batch, metric_by_samples, updates_against_samples, write_figures
from orchestrator.report.history import SweepHistory


def test_figures_are_written_whole_as_png(full_sweep, tmp_path):
    paths = write_figures(full_sweep, tmp_path / "figures")
    assert [path.name for path in paths] == ["metric_by_samples.png", "best_by_batch.png"]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(path.name for path in paths)
    for path in paths:
        with Image.open(path) as image:
            image.load()
            colors = len(image.convert("RGB").getcolors(maxcolors=1_000_000))
        assert colors > 50


def test_nothing_is_drawn_before_the_first_evaluation(made_up, tmp_path):
    sweep = made_up()
    sweep.start(16, 0.1)
    assert write_figures(sweep.events, tmp_path) == []


def test_figures_can_be_drawn_while_the_sweep_runs(made_up, tmp_path):
    sweep = made_up()
    trial, spec = sweep.start(16, 0.1)
    sweep.evaluate(trial, spec, 2_000)
    assert len(write_figures(sweep.events, tmp_path)) == 2


def test_the_best_trial_of_each_batch_is_bold_and_in_the_legend(full_sweep):
    (axes,) = metric_by_samples(SweepHistory.of(full_sweep)).axes
    bold = [line for line in axes.lines if line.get_linewidth() > 2]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["16", "64", "256"]
    assert {line.get_label(): line.get_ydata()[-1] for line in bold} == {
        "16": pytest.approx(0.9635, abs=1e-4),
        "64": pytest.approx(0.9556, abs=1e-4),
        "256": pytest.approx(0.9479, abs=1e-4),
    }


def test_axes_are_named_with_units(full_sweep):
    (axes,) = metric_by_samples(SweepHistory.of(full_sweep)).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("samples seen", "val/accuracy")
    above, below = best_by_batch(SweepHistory.of(full_sweep)).axes
    assert above.get_ylabel() == "val/accuracy"
    assert (below.get_xlabel(), below.get_ylabel()) == ("global batch (samples)", "peak LR")


def test_best_by_batch_joins_the_best_and_draws_the_rules(full_sweep):
    above, below = best_by_batch(SweepHistory.of(full_sweep)).axes
    lines = {line.get_label(): line for line in (*above.lines, *below.lines)}
    assert list(above.lines[0].get_xdata()) == [16, 64, 256]
    sqrt = lines["rule sqrt"]
    assert sqrt.get_ydata()[0] == pytest.approx(0.05)
    assert sqrt.get_ydata()[-1] == pytest.approx(0.2)
    assert [text.get_text() for text in below.get_legend().get_texts()][:3] == [
        "tried",
        "diverged",
        "best of the batch",
    ]


def test_the_cost_figure_draws_the_pareto_front(made_up, tmp_path):
    sweep = made_up(kind="updates_and_samples", target=0.9)
    for batch, value in {16: [400, 6_400], 64: [110, 7_040], 256: [120, 30_720]}.items():
        trial, spec = sweep.start(batch, 0.1)
        sweep.evaluate(trial, spec, 6_000)
        sweep.end(trial, spec, "target_reached", value, value[1])
    (axes,) = updates_against_samples(SweepHistory.of(sweep.events)).axes
    assert [tuple(point) for point in axes.lines[0].get_xydata()] == [(7_040, 110), (6_400, 400)]
    assert len(write_figures(sweep.events, tmp_path)) == 3


def test_a_sweep_of_failures_can_be_drawn(made_up, tmp_path):
    sweep = made_up(kind="updates_and_samples", target=0.9)
    trial, spec = sweep.start(16, 0.1)
    sweep.evaluate(trial, spec, 2_000)
    sweep.end(trial, spec, "failed", None, 2_000)
    assert [path.name for path in write_figures(sweep.events, tmp_path)] == [
        "metric_by_samples.png",
        "best_by_batch.png",
    ]


def test_drawing_leaves_pyplot_and_its_global_state_alone():
    code = "import sys, orchestrator.report.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
