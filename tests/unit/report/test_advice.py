from __future__ import annotations

from orchestrator.report.summary import build_summary


def advice_for(sweep, status="done"):
    sweep.add("sweep_ended", status=status)
    return " ".join(build_summary(sweep.events)["next"])


def test_best_batch_at_the_upper_edge_asks_for_a_larger_one(made_up):
    sweep = made_up()
    sweep.complete(256, 0.1)
    assert "The best batch, 256, is the largest in batch.global: add 512." in advice_for(sweep)


def test_best_batch_at_the_lower_edge_asks_for_a_smaller_one(made_up):
    sweep = made_up()
    sweep.complete(16, 0.1)
    assert "is the smallest in batch.global: add 8." in advice_for(sweep)


def test_no_batch_below_a_sample_a_worker_is_proposed(made_up):
    sweep = made_up()
    sweep.events[0]["spec"]["cluster"]["workers"] = 16
    sweep.complete(16, 0.1)
    assert "batch.global" not in advice_for(sweep)


def test_best_batch_inside_the_range_is_left_alone(made_up):
    sweep = made_up()
    sweep.complete(64, 0.1)
    assert "batch.global" not in advice_for(sweep)


def test_best_lr_within_a_tenth_of_an_edge_on_a_log_scale(made_up):
    # The range is 0.01 to 1: a tenth of it, in log, is up to 0.0158 and from 0.631.
    for base, words in ((0.015, "lower end"), (0.017, None), (0.6, None), (0.65, "upper end")):
        sweep = made_up()
        sweep.complete(64, base)
        text = advice_for(sweep)
        assert ("lr.base" in text) == (words is not None)
        assert words is None or words in text


def test_a_parameter_that_was_not_searched_has_no_edge(made_up):
    sweep = made_up()
    sweep.events[0]["spec"]["space"] = {}
    sweep.complete(256, 0.01)
    text = advice_for(sweep)
    assert "batch.global" not in text
    assert "range" not in text.replace("every range", "")


def test_many_diverged_trials_name_the_lowest_lr_at_which_it_happened(made_up):
    sweep = made_up()
    for _ in range(3):
        sweep.complete(64, 0.1)
    sweep.diverge(64, 0.7)
    assert "1 of 4 trials diverged, at peak LRs from 0.7: lower the upper end of lr.base" in advice_for(sweep)


def test_few_diverged_trials_are_not_worth_a_sentence(made_up):
    sweep = made_up()
    for _ in range(4):
        sweep.complete(64, 0.1)
    sweep.diverge(64, 0.7)
    assert "diverged" not in advice_for(sweep)


def test_failures_show_their_most_frequent_reason(made_up):
    sweep = made_up()
    sweep.complete(64, 0.1)
    sweep.fail(64, 0.1, "out of memory\nTraceback ...")
    sweep.fail(64, 0.1, "out of memory\nTraceback ...")
    sweep.fail(64, 0.1, "bad file")
    assert "3 of 4 trials failed, 2 of them with: out of memory." in advice_for(sweep)


def test_one_seed_asks_for_repeats(made_up):
    sweep = made_up()
    sweep.complete(64, 0.1)
    assert "--seeds 3" in advice_for(sweep)


def test_a_setting_that_does_better_under_new_seeds_is_preferred(made_up):
    sweep = made_up()
    lucky, steady = sweep.complete(64, 0.1), sweep.complete(64, 0.11)
    for original, base in ((lucky, 0.4), (steady, 0.11)):
        for seed in (1, 2):
            sweep.complete(64, base, seed=seed, repeat_of=original)
    text = advice_for(sweep)
    assert f"Under new seeds the setting of {steady} does better than that of {lucky}" in text


def test_settings_that_seeds_do_not_tell_apart_are_named(made_up):
    sweep = made_up()
    first, second = sweep.complete(64, 0.1), sweep.complete(64, 0.101)
    for original, base in ((first, 0.1), (second, 0.101)):
        for seed in (1, 2):
            sweep.complete(64, base, seed=seed, repeat_of=original)
    assert f"The seeds do not tell {first} from {second}" in advice_for(sweep)


def test_a_target_that_hardly_any_trial_reached(made_up):
    sweep = made_up(kind="samples_to_target", target=0.99)
    for _ in range(4):
        trial, spec = sweep.start(64, 0.1)
        sweep.end(trial, spec, "completed", None, 20_000)
    assert "0 of 4 finished trials reached val/accuracy = 0.99: raise budget.samples" in advice_for(sweep)


def test_an_interrupted_sweep_says_so_first(made_up):
    sweep = made_up()
    sweep.complete(64, 0.1)
    assert advice_for(sweep, "interrupted").startswith("The sweep ended as 'interrupted' with 1 finished trials")


def test_the_planted_rule_is_named_with_its_base(full_sweep):
    text = " ".join(build_summary(full_sweep)["next"])
    assert "Across 3 batch sizes, lr.rule sqrt with lr.base 0.1 does as well as an LR tuned at each." in text


def test_a_base_at_the_edge_of_what_was_tried_is_flagged(made_up):
    sweep = made_up()
    for batch in (16, 64, 256):
        for base in (0.2, 0.4, 0.8):
            sweep.complete(batch, base)
    assert "that base is at the edge of what was tried: widen lr.base." in advice_for(sweep)
