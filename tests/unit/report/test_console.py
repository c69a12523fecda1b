from __future__ import annotations

import io
import re
import threading

import pytest
from rich.console import Console as RichConsole

from orchestrator.report.console import LOG_WIDTH, Console, print_plan
from orchestrator.report.history import SweepHistory
from orchestrator.report.live_table import MAX_ROWS, live_view
from orchestrator.report.plan import Candidates, Plan, PlannedBatch
from orchestrator.report.summary import build_summary
from orchestrator.theory.batch_plan import BatchPlan

RUN_DIR = "/a/very/long/path/to/the/folder/of/this/project/and/its/runs/with/spaces in it/digits-20260101T000000Z"


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def log_of(events) -> str:
    file = io.StringIO()
    with Console(file) as console:
        for event in events:
            console(event)
    return file.getvalue()


def final_report(events) -> str:
    file = io.StringIO()
    Console(file).finish(build_summary(events, warnings=["the largest batch is over a tenth of the data"]), RUN_DIR)
    return file.getvalue()


def shown(renderable, width: int) -> str:
    out = RichConsole(file=io.StringIO(), width=width, color_system=None)
    out.print(renderable)
    return out.file.getvalue()


def test_the_log_has_a_line_for_each_trial_that_ended(full_sweep):
    lines = log_of(full_sweep).splitlines()
    for trial in [*(f"t{number:04d}" for number in range(18)), "t0001-seed1", "t0001-seed2"]:
        assert sum(line.startswith(f"{trial} ") for line in lines) == 1
    assert "t0001 completed  B 16 (8x1x2) lr 0.05 sqrt, accuracy 0.9635, 2.0 s" in lines
    assert "t0014 diverged   B 64 (32x1x2) lr 1: the loss is not finite after 640 samples" in lines
    assert "t0017 reused     as t0001, which trained the same way: 0.96" in lines
    assert lines[-1] == "sweep done"


def test_the_log_and_the_final_report_fit_into_80_columns_without_control_characters(full_sweep):
    report = final_report(full_sweep)
    for text in (log_of(full_sweep), report.removesuffix(f"{RUN_DIR}\n")):
        assert max(map(len, text.splitlines())) <= LOG_WIDTH
        assert "\x1b" not in text
        assert "…" not in text


def test_a_quiet_log_gets_a_progress_line_every_30_s_and_no_more_often(made_up):
    sweep = made_up(trials=4)
    sweep.complete(64, 0.1)
    trial, spec = sweep.start(64, 0.2)
    first = len(sweep.events)
    sweep.evaluate(trial, spec, 20_000)
    for index, event in enumerate(sweep.events[first:], start=1):
        event["t"] = 5_000.0 + 10 * index
    progress = [line for line in log_of(sweep.events).splitlines() if "running" in line]
    assert len(progress) == 4
    assert all(line.endswith(", best 0.9556 (t0000)") for line in progress)
    assert all(line.startswith("digits: 1/4 done, 1 running, ETA ") for line in progress)


def test_long_reasons_are_cut(made_up):
    sweep = made_up()
    sweep.fail(64, 0.1, "x" * 300)
    line = log_of(sweep.events).splitlines()[-1]
    assert len(line) == LOG_WIDTH
    assert line.endswith("...")


def test_text_in_brackets_is_not_taken_for_markup(made_up):
    sweep = made_up()
    sweep.fail(64, 0.1, "expected shape [64, 10] [bold]")
    assert "[64, 10] [bold]" in log_of(sweep.events)
    assert "[64, 10] [bold]" in final_report(sweep.events)


def test_the_last_line_is_the_run_directory_unbroken(full_sweep):
    assert final_report(full_sweep).splitlines()[-1] == RUN_DIR


def test_the_final_report_shows_tables_best_repeats_and_what_to_do_next(full_sweep):
    report = final_report(full_sweep)
    rows = [line.split() for line in report.splitlines()]
    assert ["16", "8x1x2", "5/5", "0.9635", "t0001*", "0.05", "sqrt", "1k", "1.25k"] in rows
    assert ["sqrt", "0.1", "3/3", "0.9557", "0", "0", "at", "16"] in rows
    assert ["t0001", "16", "0.05", "val/accuracy", "3", "0.9655", "0.001987", "0.9605", "to", "0.9704"] in rows
    assert "Best: t0001, val/accuracy 0.9635" in report
    assert "batch.global=16 lr.base=0.1 lr.rule=sqrt" in report
    assert "Warnings:\n  - the largest batch is over a tenth of the data" in report
    assert "  - The best batch, 16, is the smallest in batch.global: add 8." in report


def test_a_sweep_without_any_result_still_ends_with_a_report(made_up):
    sweep = made_up()
    sweep.fail(64, 0.1)
    report = final_report(sweep.events)
    assert "Best: none" in report
    assert report.splitlines()[-1] == RUN_DIR


def test_two_objectives_show_both_values(made_up):
    sweep = made_up(kind="updates_and_samples", target=0.9)
    trial, spec = sweep.start(64, 0.1)
    sweep.end(trial, spec, "target_reached", [110, 7_040], 7_040)
    report = final_report(sweep.events)
    assert "  - 110 updates to target, 7040 samples to target: t0000, global batch 64" in report
    assert "Best:" not in report, "of two objectives none is the better one"
    assert "updates to target/samples to target 110, 7040" in log_of(sweep.events)


def test_the_live_table_holds_all_running_and_the_latest_ended_trials(made_up):
    sweep = made_up()
    running, spec = sweep.start(16, 0.1)
    sweep.evaluate(running, spec, 10_000)
    ended = [sweep.complete(64, 0.1) for _ in range(30)]
    view = shown(live_view(SweepHistory.of(sweep.events), now=2_000.0, width=120, height=50), 120)
    rows = [line.split() for line in view.splitlines() if re.match(r"t\d{4}", line)]
    assert [row[0] for row in rows] == [running, *ended[-(MAX_ROWS - 1) :]]
    assert rows[0] == [running, "16", "8x1x2", "0.05", "sqrt", "1k", "10k", "0.8904", "10k/s", "1.0", "s", "running"]
    assert view.startswith("digits: 30/31 done, 1 running, ETA ")


@pytest.mark.parametrize("width", [80, 88, 104, 160])
def test_the_live_table_fits_the_terminal(full_sweep, width):
    view = live_view(SweepHistory.of(full_sweep), now=2_000.0, width=width, height=12)
    lines = shown(view, width).splitlines()
    assert len(lines) <= 12
    assert "…" not in "".join(lines)
    assert any("stopped by asha" in line for line in lines)


def test_a_terminal_gets_the_table_and_no_log_lines(full_sweep, monkeypatch):
    # rich asks the environment before it asks the file.
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    file = Terminal()
    with Console(file) as console:
        for event in full_sweep:
            console(event)
    assert "peak LR" in file.getvalue()
    assert "t0001 completed  B 16 (8x1x2) lr" not in file.getvalue()


def test_events_may_come_from_many_threads(made_up):
    sweep = made_up()
    trials = [sweep.start(64, 0.1) for _ in range(8)]
    started = list(sweep.events)
    ends = []
    for trial, spec in trials:
        sweep.end(trial, spec, "completed", 0.9, 20_000)
        ends.append(sweep.events[-1])
    file = io.StringIO()
    with Console(file) as console:
        for event in started:
            console(event)
        threads = [threading.Thread(target=console, args=(event,)) for event in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(line[:5] for line in file.getvalue().splitlines() if " completed " in line) == [t for t, _ in trials]


def plan(**changes) -> Plan:
    batches = [BatchPlan(global_batch=b, micro_batch=b // 2, accumulation=1, world_size=2) for b in (16, 256)]
    values = {
        "name": "digits",
        "task": "digits",
        "objective": "val/accuracy, higher is better",
        "search": "tpe, early stopping asha, 1 seed",
        "candidates": (
            Candidates(key="batch.global", text="16, 256", count=2),
            Candidates(key="x", text="[a]", count=3),
        ),
        "batches": tuple(PlannedBatch(plan=p, updates=-(-20_000 // p.global_batch), evaluations=10) for p in batches),
        "budget_samples": 20_000,
        "eval_every_samples": 2_000,
        "trials": 24,
        "trials_at_once": 2,
        "gangs": 2,
        "workers_per_gang": 2,
        "needed": {"CPU": 4},
        "available": {"CPU": 8},
        "output": RUN_DIR,
        "tracking_uri": "sqlite:////a/mlflow.db",
        "warnings": ("one warning",),
    }
    return Plan(**{**values, **changes})


def test_the_plan_shows_candidates_batches_and_resources():
    file = io.StringIO()
    print_plan(plan(), file)
    text = file.getvalue()
    rows = [line.split() for line in text.splitlines()]
    assert ["16", "8", "1", "2", "1,250", "10"] in rows
    assert ["256", "128", "1", "2", "79", "10"] in rows
    assert ["x", "[a]", "3"] in rows
    assert "24 trials out of 6 combinations" in text
    assert "2 at once, on 2 gangs of 2 workers." in " ".join(text.split())
    assert "CPU: 4 needed, 8 available" in text
    assert f"output:   {RUN_DIR}" in text.splitlines()
    assert "  - one warning" in text
    assert text.endswith("Dry run: nothing was started.\n")


def test_a_continuous_parameter_leaves_the_combinations_uncounted():
    continuous = plan(candidates=(Candidates(key="lr.base", text="0.01 to 1 (log)", count=None),))
    assert continuous.combinations is None
    file = io.StringIO()
    print_plan(continuous, file)
    assert "a continuous space" in file.getvalue()
