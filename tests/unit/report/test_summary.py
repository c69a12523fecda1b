from __future__ import annotations

import json
import math

import pytest

from orchestrator.report.summary import build_summary, finite_only


def test_best_is_the_known_answer_of_the_made_up_sweep(full_sweep):
    best = build_summary(full_sweep)["best"]
    assert best["params"] == {"batch.global": 16, "lr.base": 0.1, "lr.rule": "sqrt"}
    assert best["trial"] == "t0001"
    assert best["value"] == pytest.approx(0.97 * (1 - math.exp(-5)))
    assert best["spec"]["lr"]["peak"] == 0.05


def test_a_stopped_trial_is_never_best_for_its_value_is_from_fewer_samples(full_sweep):
    summary = build_summary(full_sweep)
    stopped = next(trial for trial in summary["trials"] if trial["status"] == "stopped")
    assert stopped["value"] == 0.999
    assert stopped["stopped_by"] == "asha"
    assert stopped["value"] > summary["best"]["value"]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_direction_comes_from_the_task(made_up, mode):
    sweep = made_up()
    sweep.events[0]["facts"]["metric_modes"]["accuracy"] = mode
    low, high = sweep.complete(16, 0.8), sweep.complete(16, 0.1)
    assert build_summary(sweep.events)["best"]["trial"] == (low if mode == "min" else high)


def test_values_that_are_not_finite_never_win(made_up):
    # The case of losses [1.0, NaN, 0.5, inf], minimised: 0.5 is best.
    sweep = made_up()
    sweep.events[0]["spec"]["objective"]["metric"] = "val/loss"
    for value in (1.0, math.nan, 0.5, math.inf, -math.inf):
        trial, spec = sweep.start(16, 0.1)
        sweep.end(trial, spec, "completed", value, 20_000)
    summary = build_summary(sweep.events)
    assert (summary["best"]["trial"], summary["best"]["value"]) == ("t0002", 0.5)
    assert [trial["value"] for trial in summary["trials"]] == [1.0, None, 0.5, None, None]
    json.dumps(summary, allow_nan=False)


def test_without_a_finished_trial_there_is_no_best(made_up):
    sweep = made_up()
    sweep.diverge(16, 1.0)
    sweep.fail(64, 0.1)
    summary = build_summary(sweep.events)
    assert summary["best"] is None
    assert [record["best_trial"] for record in summary["by_batch"]] == [None, None]


def test_counts_add_up_to_what_happened(full_sweep):
    summary = build_summary(full_sweep)
    assert summary["counts"] == {
        "completed": 16,
        "target_reached": 0,
        "stopped": 1,
        "failed": 1,
        "diverged": 1,
        "unfinished": 0,
        "reused": 1,
    }
    assert len(summary["trials"]) == 20
    assert len({trial["id"] for trial in summary["trials"]}) == 20


def test_by_batch_names_the_best_setting_of_each_batch(full_sweep):
    records = build_summary(full_sweep)["by_batch"]
    assert [(r["global_batch"], r["trials"], r["finished"], r["best_trial"]) for r in records] == [
        (16, 5, 5, "t0001"),
        (64, 6, 4, "t0005"),
        (256, 6, 5, "t0009"),
    ]
    assert [r["peak_lr"] for r in records] == pytest.approx([0.05, 0.1, 0.2])
    for record in records:
        assert record["micro_batch"] * record["accumulation"] * record["world_size"] == record["global_batch"]


def test_rules_find_the_planted_rule_and_base(full_sweep):
    rules = {rule["rule"]: rule for rule in build_summary(full_sweep)["rules"]}
    assert set(rules) == {"none", "sqrt", "linear"}
    assert rules["sqrt"]["base_lr"] == pytest.approx(0.1)
    assert rules["sqrt"]["mean_shortfall"] == pytest.approx(0.0, abs=1e-12)
    # At a common base of 0.1, none and linear are one octave off at 16 and 256 each: 0.01 below, twice in three.
    assert rules["linear"]["mean_shortfall"] == pytest.approx(2 * 0.01 * (1 - math.exp(-5)) / 3, rel=0.6)
    assert rules["linear"]["mean_shortfall"] > 0.005


def test_sde_trials_are_compared_with_each_other_alone(made_up):
    sweep = made_up()
    for batch in (16, 256):
        for base in (0.05, 0.1, 0.2):
            sweep.complete(batch, base, "sde")
    rules = {rule["rule"]: rule for rule in build_summary(sweep.events)["rules"]}
    assert rules["sde"]["base_lr"] == pytest.approx(0.1)
    assert rules["sqrt"]["reason"].startswith("not determined")


def test_repeats_give_mean_and_spread_over_the_seeds(full_sweep):
    (record,) = build_summary(full_sweep)["repeats"]
    share = 1 - math.exp(-5)
    assert record["seeds"] == [0, 1, 2]
    assert record["values"] == pytest.approx([0.97 * share, 0.972 * share, 0.974 * share])
    assert record["n"] == 3
    assert record["mean"] == pytest.approx(0.972 * share)
    assert record["standard_deviation"] == pytest.approx(0.002 * share)
    assert record["new_seeds_mean"] == pytest.approx(0.973 * share)
    # t quantile for 2 degrees of freedom, 95 %: 4.3027 (any table of Student's t).
    assert record["high"] - record["mean"] == pytest.approx(4.3027 * 0.002 * share / math.sqrt(3), rel=1e-4)


def test_a_repeat_that_failed_is_counted_as_missing(made_up):
    sweep = made_up()
    best = sweep.complete(16, 0.1)
    trial, spec = sweep.start(16, 0.1, seed=1, repeat_of=best)
    sweep.end(trial, spec, "diverged", None, 640)
    (record,) = build_summary(sweep.events)["repeats"]
    assert (record["n"], record["missing"], record["standard_deviation"], record["low"]) == (1, 1, None, None)


def test_repeats_are_not_candidates_for_best(full_sweep):
    summary = build_summary(full_sweep)
    repeats = [trial for trial in summary["trials"] if trial["phase"] == "repeat"]
    assert all(trial["value"] > summary["best"]["value"] for trial in repeats)
    assert summary["best"]["trial"] not in {trial["id"] for trial in repeats}


def test_two_objectives_give_a_pareto_front(made_up):
    sweep = made_up(kind="updates_and_samples", target=0.9)
    values = {16: [400, 6_400], 64: [110, 7_040], 256: [120, 30_720]}
    for batch, value in values.items():
        trial, spec = sweep.start(batch, 0.1)
        sweep.end(trial, spec, "target_reached", value, value[1])
    front = build_summary(sweep.events)["pareto_front"]
    assert [member["value"] for member in front] == [[110, 7_040], [400, 6_400]]


def test_a_single_objective_has_no_front(full_sweep):
    assert build_summary(full_sweep)["pareto_front"] is None


def test_a_target_that_was_missed_has_no_value_and_is_never_best(made_up):
    sweep = made_up(kind="samples_to_target", target=0.9)
    trial, spec = sweep.start(16, 0.01)
    sweep.end(trial, spec, "completed", None, 20_000)
    reached, spec = sweep.start(16, 0.1)
    sweep.end(reached, spec, "target_reached", 10_000, 10_000)
    summary = build_summary(sweep.events)
    assert summary["best"]["trial"] == reached
    assert summary["objective"]["modes"] == ["min"]


def test_turnaround_has_median_and_p95(made_up):
    sweep = made_up()
    for _ in range(21):
        sweep.complete(16, 0.1)
    turnarounds = [e for e in sweep.events if e["event"] == "trial_ended"]
    for index, event in enumerate(turnarounds):
        event["turnaround_s"] = None if index == 0 else index / 10
    # 0.1, 0.2, ..., 2.0: median 1.05; the 95th percentile lies 0.05 of the way from the 19th to the 20th.
    assert build_summary(sweep.events)["turnaround_s"] == {
        "n": 20,
        "median": pytest.approx(1.05),
        "p95": pytest.approx(1.905),
    }


def test_first_evaluation_counts_from_the_start_of_the_process(made_up):
    sweep = made_up()
    sweep.complete(16, 0.1)
    first = next(e["t"] for e in sweep.events if e["event"] == "evaluation")
    assert build_summary(sweep.events, process_started_at=first - 7.5)["first_evaluation_s"] == 7.5
    assert build_summary(sweep.events)["first_evaluation_s"] == first - sweep.events[0]["t"]
    assert build_summary(sweep.events[:1])["first_evaluation_s"] is None


def test_credentials_of_the_tracking_server_are_masked(full_sweep):
    tracking = {"tracking_uri": "http://ada:secret@host:5000", "experiment": "digits", "parent_run_id": "abc"}
    summary = build_summary(full_sweep, mlflow=tracking)
    assert "secret" not in json.dumps(summary)
    assert summary["mlflow"] == {
        "tracking_uri": "http://***@host:5000",
        "experiment": "digits",
        "parent_run_id": "abc",
    }


def test_a_trial_left_open_by_an_interrupt_is_unfinished(made_up):
    sweep = made_up()
    sweep.start(16, 0.1)
    assert build_summary(sweep.events)["trials"][0]["status"] == "running"
    sweep.add("sweep_ended", status="interrupted")
    summary = build_summary(sweep.events)
    assert summary["status"] == "interrupted"
    assert summary["trials"][0]["status"] == "unfinished"


def test_events_without_a_start_are_refused():
    with pytest.raises(ValueError, match="sweep_started"):
        build_summary([])


def test_what_is_not_finite_becomes_none():
    assert finite_only({"a": (math.inf, 1.5), "b": [math.nan, {"c": 2}]}) == {"a": [None, 1.5], "b": [None, {"c": 2}]}
