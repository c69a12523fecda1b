"""Every wrong spec is one error with file, key, value, rule and remedy; every right one loads."""

from __future__ import annotations

import pytest

from orchestrator.config.load import load_spec, spec_from_dict
from orchestrator.errors import ConfigError


def test_defaults_need_a_task_only():
    spec = spec_from_dict({"task": {"name": "my_pkg.tasks:Mine"}})
    assert spec.name == "Mine"
    assert spec.optimizer.options == {"momentum": 0.9}
    assert spec.batch.reference_batch == spec.batch.global_batch == 64
    assert str(spec.lr.warmup) == "5%"
    assert spec.space == {}


def test_the_reference_batch_is_the_written_one_unless_given():
    raw = {"task": {"name": "digits"}, "batch": {"global": 128}, "space": {"batch.global": [32, 64]}}
    assert spec_from_dict(raw).batch.reference_batch == 128


def test_the_default_momentum_stays_with_the_default_optimizer():
    assert spec_from_dict({"task": {"name": "digits"}, "optimizer": {"name": "AdamW"}}).optimizer.options == {}


@pytest.mark.parametrize(
    ("override", "key", "value", "rule", "remedy"),
    [
        ("lr.rul=none", "lr.rul", "none", "unknown key", "the nearest valid key is lr.rule"),
        ("serch.trials=3", "serch", {"trials": 3}, "unknown key", "the nearest valid key is search"),
        ("zzz=3", "zzz", 3, "unknown key", "valid keys are task, name, seed, objective"),
        ("training.loader.wrkers=1", "training.loader.wrkers", 1, "unknown key", "training.loader.workers"),
        ("batch.micro_batch=8", "batch.micro_batch", 8, "unknown key", "the nearest valid key is batch.micro"),
        ("batch.global='64'", "batch.global", "64", "must be a whole number", "without quotes"),
        ("batch.global=true", "batch.global", True, "must be a whole number", "plain number"),
        ("budget.samples=20000.5", "budget.samples", 20000.5, "must be a whole number", "fraction"),
        ("batch.micro=0", "batch.micro", 0, "must be auto or a whole number of at least 1", "1 or more"),
        ("batch.accumulation=0", "batch.accumulation", 0, "must be at least 1", "1 or more"),
        ("search.trials=0", "search.trials", 0, "must be at least 1", "1 or more"),
        ("search.seeds=0", "search.seeds", 0, "must be at least 1", "1 or more"),
        ("search.reduction=1", "search.reduction", 1, "must be at least 2", "2 or more"),
        ("seed=-1", "seed", -1, "must be at least 0", "0 or more"),
        ("cluster.gangs=0", "cluster.gangs", 0, "must be auto or a whole number", "1 or more"),
        ("cluster.gangs=true", "cluster.gangs", True, "must be auto or a whole number", "1 or more"),
        ("cluster.device_memory=80GiBB", "cluster.device_memory", "80GiBB", "must be a size from 1 to", "80GiB"),
        ("cluster.device_memory='80'", "cluster.device_memory", "80", "must be a size from 1 to", "its unit"),
        ("cluster.device_memory=0", "cluster.device_memory", 0, "must be a size from 1 to", "16GB"),
        ("cluster.device_memory=-5GB", "cluster.device_memory", "-5GB", "must be a size from 1 to", "16GB"),
        ("cluster.device_memory=5bit", "cluster.device_memory", "5bit", "must be a size from 1 to", "16GB"),
        ("cluster.device_memory=true", "cluster.device_memory", True, "must be a size from 1 to", "16GB"),
        ("cluster.device_memory=2PB", "cluster.device_memory", "2PB", "from 1 to 1e+15 bytes", "16GB"),
        ("cluster.memory_margin=1", "cluster.memory_margin", 1, "must be below 1", "below 1"),
        ("cluster.memory_margin=-0.1", "cluster.memory_margin", -0.1, "must be at least 0", "0 or more"),
        ("training.offload_optimizer=1", "training.offload_optimizer", 1, "must be true or false", "true or false"),
        (
            "training.loader.pin_memory=1",
            "training.loader.pin_memory",
            1,
            "must be auto, true or false",
            "without quotes",
        ),
        ("training.noise_probe=1", "training.noise_probe", 1, "must be true or false", "true or false"),
        ("training.precision=fp8", "training.precision", "fp8", "must be one of fp32", "one of these"),
        ("training.grad_clip=0", "training.grad_clip", 0, "must be above 0", "above 0"),
        ("lr.base='0.1'", "lr.base", "0.1", "must be a number", "without quotes"),
        ("lr.base=.nan", "lr.base", None, "must be a finite number", "plain number"),
        ("lr.rule=sqr", "lr.rule", "sqr", "must be one of none, sqrt", "the nearest valid value is sqrt"),
        ("lr.rule=[sqrt]", "lr.rule", ["sqrt"], "must be one of none, sqrt", "one of these"),
        ("lr.warmup=5", "lr.warmup", 5, "a number alone has no unit", '"5%" of the budget, "2000 samples"'),
        ("lr.warmup=3 epochs", "lr.warmup", "3 epochs", "unknown unit 'epochs'", '"50 updates"'),
        ("lr.final=0.1", "lr.final", 0.1, "must be a share", '"10%"'),
        ("lr.final=5 updates", "lr.final", "5 updates", "must be a share", '"10%"'),
        ("budget.eval_every=50 updates", "budget.eval_every", "50 updates", "evaluations come by samples", "2000"),
        ("budget.eval_every=0", "budget.eval_every", 0, "must be at least 1 sample", "such as 2000"),
        ("objective.metric=accuracy", "objective.metric", "accuracy", "val/<name>", "val/accuracy"),
        ("task.name=a/b", "task.name", "a/b", "neither a task's short name", "package.module:Class"),
        ("name=a/b", "name", "a/b", "characters that are not allowed", "letters, digits"),
        ("optimizer.lr=0.1", "optimizer.lr", 0.1, "not an optimizer option", "lr.base"),
        ("tracking=3", "tracking", 3, "must be a mapping", "keys below"),
        ("space=[1]", "space", [1], "must be a mapping of dotted keys", "batch.global: [32, 64]"),
        ("space.batch.global=[0, 16]", "space.batch.global", 0, "must be at least 1", "1 or more"),
        ("space.lr.rul=[none]", "space.lr.rul", None, "unknown key", "the nearest valid key is lr.rule"),
        ("space.lr.rule=[none, sqr]", "space.lr.rule", "sqr", "must be one of", "the nearest valid value is sqrt"),
        ("space.lr.warmup=null", "space.lr.warmup", None, "not in the space", "lr."),
        ("seed.x=1", "seed.x", 1, "seed holds a value", "seed itself"),
        ("lr.base", None, "lr.base", "must be key=value", "lr.base=0.1"),
        ("lr..base=1", None, "lr..base=1", "must be key=value", "lr.base=0.1"),
        ("lr.rule=[", "lr.rule", "[", "is no valid YAML", "brackets"),
    ],
)
def test_refused_overrides(refused, override, key, value, rule, remedy):
    if override.startswith("seed.x"):
        error = refused("seed=1", override)
    else:
        error = refused(override)
    assert error.file == "--set"
    assert error.key == key
    assert value is None or error.value == value
    assert rule in error.rule
    assert remedy in error.remedy
    assert str(error).startswith("--set: ")


def test_an_error_names_the_file_as_given(digits, monkeypatch):
    digits.write_text("task: {name: digits}\nlr: {rul: none}\n")
    monkeypatch.chdir(digits.parent)
    with pytest.raises(ConfigError) as caught:
        load_spec("digits.yaml")
    assert str(caught.value) == "digits.yaml: lr.rul = 'none': unknown key. The nearest valid key is lr.rule."


def test_a_misspelt_option_beside_a_right_override_is_still_the_files(digits):
    digits.write_text("task: {name: digits}\nlr: {rul: none}\n")
    with pytest.raises(ConfigError) as caught:
        load_spec(digits, ["lr.base=0.5"])
    assert caught.value.file == str(digits)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("search: {trials: 0}\nbatch: {global: 0}\ntask: {name: 3}\n", "search.trials"),
        ("batch: {micro: 0, global: 0}\ntask: {name: digits}\n", "batch.micro"),
        ("space: {batch.global: []}\nseed: x\ntask: {name: digits}\n", "space.batch.global"),
        ("seed: x\nspace: {batch.global: []}\ntask: {name: digits}\n", "seed"),
        ("batch: {global: 0}\n", "batch.global"),
        ("batch: {global: 8}\n", "task"),
        ("task: {hidden: 3}\n", "task.name"),
    ],
)
def test_the_first_error_in_the_order_of_the_file_wins(digits, text, key):
    digits.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_spec(digits)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "the file is empty"),
        (b"# nothing\n", "the file is empty"),
        (b"- a\n", "must be a mapping"),
        (b"task: {name: digits\n", "line 2, column 1: is no valid YAML"),
        (b"task: {name: digits}\nseed: 1\nseed: 2\n", "is given twice, in lines 2 and 3"),
        (b"seed: 1\nname: \xff\n", "line 2 is no UTF-8 text"),
        (b"task: {name: digits}\n1: 2\n", "a key must be text"),
        (b"task: {name: digits}\nlr.base: 0.1\n", "unknown key"),
        (b"task: {name: digits, when: !!timestamp 2026-01-01}\n", "a date cannot stand in a spec"),
        (b"task: &t {name: digits, again: *t}\n", "is nested more than"),
    ],
)
def test_refused_files(digits, content, rule):
    digits.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_spec(digits)
    assert rule in caught.value.rule
    assert caught.value.file == str(digits)
    assert caught.value.remedy


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        load_spec(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_spec(tmp_path)


def test_windows_line_ends_and_byte_order_mark(digits):
    digits.write_bytes(b"\xef\xbb\xbftask: {name: digits}\r\nseed: 3\r\n")
    assert load_spec(digits).spec.seed == 3


def test_data_in_a_spec_is_refused_with_advice(digits):
    raw = {"task": {"name": "digits", "rows": list(range(100_000))}}
    with pytest.raises(ConfigError) as caught:
        spec_from_dict(raw)
    assert caught.value.key == "task.rows"
    assert caught.value.rule == "the spec is larger than 256 KiB"
    assert "pass the path" in caught.value.remedy
    assert len(str(caught.value)) < 300
    digits.write_text("task: {name: digits, rows: [" + "1, " * 500_000 + "]}")
    with pytest.raises(ConfigError, match="the file is larger than 1024 KiB"):
        load_spec(digits)


def test_a_small_file_that_stands_for_gigabytes_is_refused(digits):
    lines = ["task:", "  name: digits", "  a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    digits.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="the spec is larger than 256 KiB"):
        load_spec(digits)


def test_overrides_reach_every_level(digits):
    spec = load_spec(
        digits,
        [
            "batch.global=2e2",
            "lr.base=1e-3",
            "task.depth=3",
            "optimizer.nesterov=true",
            "training.loader.workers=2",
            "space.batch.global=[20,40]",
            "space.lr.rule=null",
            "space.optimizer.momentum=[0, 0.9]",
            "seed=1",
            "seed=2",
        ],
    ).spec
    assert spec.batch.global_batch == 200
    assert spec.lr.base == 0.001
    assert spec.task.options == {"model": "mlp", "hidden": 64, "depth": 3}
    assert spec.optimizer.options == {"momentum": 0.9, "nesterov": True}
    assert spec.training.loader.workers == 2
    assert list(spec.space) == ["batch.global", "lr.base", "optimizer.momentum"]
    assert spec.space["batch.global"].values() == (20, 40)
    assert spec.space["optimizer.momentum"].values() == (0.0, 0.9)
    assert spec.seed == 2


def test_warnings(digits):
    assert load_spec(digits).warnings == ()
    assert "only candidate" in load_spec(digits, ["space={}"]).warnings[0]
    assert "space.lr.rule = [sqrt]: is a single value" in load_spec(digits, ["space.lr.rule=[sqrt]"]).warnings[0]
    (warning,) = load_spec(digits, ["space.optimizer.weight_decay={low: 0, high: 1}"]).warnings
    assert warning.startswith("space.optimizer.weight_decay: tries whole numbers only")
