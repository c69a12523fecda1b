"""The spec itself: frozen, written with the user's keys, read back equal, and one hash for one meaning."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.config.load import load_spec, spec_from_dict
from orchestrator.config.refusal import Refusal
from orchestrator.config.spec import SweepSpec
from orchestrator.config.training_sections import BatchSection, TaskSection
from orchestrator.config.yaml_form import parse
from orchestrator.theory.memory import MARGIN

names = st.text("abcxyz", min_size=1, max_size=6)
values = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(0, 1) | st.sampled_from(["1e3", "no", "5%", "mlp"])
options = st.dictionaries(names.filter(lambda n: n != "name"), values | st.lists(values, max_size=3), max_size=3)
counts = st.integers(1, 10**6)
durations = st.one_of(
    st.just(0),
    st.integers(1, 99).map(lambda n: f"{n}%"),
    counts.map(lambda n: f"{n} samples"),
    counts.map(lambda n: f"{n} updates"),
)
spaces = st.fixed_dictionaries(
    {},
    optional={
        "batch.global": st.lists(counts, min_size=1, unique=True),
        "lr.base": st.tuples(st.floats(1e-9, 1), st.floats(2, 9)).map(
            lambda e: {"low": e[0], "high": e[1], "log": True}
        ),
        "lr.warmup": st.just({"low": 0, "high": "12.5%"}),
        "task.hidden": st.integers(1, 9).map(lambda n: {"low": n, "high": 4 * n, "step": n}),
        "batch.micro": st.just({"low": 1, "high": 512, "powers_of": 2}),
        "training.grad_clip": st.just([None, 1.0]),
    },
)
documents = st.fixed_dictionaries(
    {"task": options.map(lambda o: {"name": "digits", **o})},
    optional={
        "seed": st.integers(0, 2**63 - 1),
        "batch": st.fixed_dictionaries({"global": counts}, optional={"reference": counts, "micro": counts | st.none()}),
        "lr": st.fixed_dictionaries({"warmup": durations, "base": st.floats(1e-12, 1e3)}),
        "budget": st.fixed_dictionaries({"samples": counts, "eval_every": counts | st.just("10%")}),
        "optimizer": options.map(lambda o: {"name": "AdamW", **{k: v for k, v in o.items() if k != "lr"}}),
        "space": spaces,
    },
)


@settings(deadline=None)
@given(documents)
def test_a_written_spec_reads_back_equal(document):
    spec = spec_from_dict(document)
    assert spec_from_dict(spec.to_dict()) == spec
    assert spec_from_dict(parse(spec.to_yaml())) == spec
    assert json.loads(json.dumps(spec.to_dict())) == spec.to_dict() == yaml.safe_load(spec.to_yaml())


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("80GiB", 80 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("1.5gib", 3 * 2**29),
        ("16GB", 16 * 10**9),
        ("2e9", 2 * 10**9),
        ("1_000_000", 10**6),
        ("null", None),
    ],
)
def test_sizes_are_bytes_in_any_unit_and_written_as_bytes(written, size):
    cluster = {"device_memory": parse(written), "memory_margin": 0.1}
    spec = spec_from_dict({"task": {"name": "digits"}, "cluster": cluster})
    assert spec.cluster.device_memory == size
    assert parse(spec.to_yaml())["cluster"]["device_memory"] == size
    assert spec_from_dict(parse(spec.to_yaml())) == spec
    assert spec_from_dict({"task": {"name": "digits"}}).cluster.memory_margin == MARGIN


def test_a_written_spec_is_a_file_that_loads(digits, tmp_path):
    spec = load_spec(digits).spec
    written = tmp_path / "spec.yaml"
    written.write_text(spec.to_yaml())
    again = load_spec(written).spec
    assert again == spec
    assert list(again.space) == list(spec.space)
    assert again.to_yaml() == spec.to_yaml()


def test_the_written_keys_are_the_users(digits):
    written = load_spec(digits).spec.to_dict()
    assert list(written)[:3] == ["name", "task", "seed"]
    assert written["batch"] == {"global": 64, "reference": 64, "micro": None, "micro_max": None, "accumulation": None}
    assert written["task"] == {"name": "digits", "model": "mlp", "hidden": 64}
    assert written["lr"]["warmup"] == "5%"
    assert written["budget"]["eval_every"] == 2000


def test_the_hash_is_of_the_meaning(digits):
    spec = load_spec(digits).spec
    backwards = {
        name: dict(reversed(part.items())) if isinstance(part, dict) else part
        for name, part in reversed(spec.to_dict().items())
    }
    assert spec_from_dict(backwards).spec_hash == spec.spec_hash
    assert load_spec(digits, ["lr.warmup=5.0%", "cluster.workers=2"]).spec.spec_hash == spec.spec_hash
    assert load_spec(digits, ["lr.warmup=6%"]).spec.spec_hash != spec.spec_hash


def test_the_hash_is_the_same_in_every_process(digits):
    code = "import sys; from orchestrator.config.load import load_spec; print(load_spec(sys.argv[1]).spec.spec_hash)"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code, str(digits)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert hashes == {load_spec(digits).spec.spec_hash}


def test_nothing_heavy_is_imported():
    code = (
        "import pkgutil, sys, importlib, orchestrator.config as c\n"
        "[importlib.import_module(f'orchestrator.config.{m.name}') for m in pkgutil.iter_modules(c.__path__)]\n"
        "print(sorted({'torch', 'ray', 'optuna', 'mlflow', 'scipy', 'pandas'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "[]"


def test_frozen_and_copyable(digits):
    spec = load_spec(digits).spec
    with pytest.raises(ValidationError):
        spec.batch.global_batch = 3
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec


def test_in_code_attributes_have_the_fields_names():
    spec = SweepSpec(task=TaskSection(name="digits", hidden=3), batch=BatchSection(global_batch=32, micro_batch=4))
    assert (spec.batch.global_batch, spec.batch.reference_batch, spec.task.options) == (32, 32, {"hidden": 3})


def test_every_field_has_its_help():
    def without_help(section, prefix=""):
        for name, field in section.model_fields.items():
            below = field.annotation
            if isinstance(below, type) and hasattr(below, "model_fields"):
                yield from without_help(below, f"{prefix}{name}.")
            elif not field.description:
                yield f"{prefix}{name}"

    assert list(without_help(SweepSpec)) == []


@pytest.mark.parametrize("data", [object(), {1: 2}, float("inf"), b"x" * 10])
def test_what_is_no_plain_data_is_refused_in_code_too(data):
    with pytest.raises(ValidationError) as caught:
        TaskSection(name="digits", data=data)
    assert isinstance(caught.value.errors()[0]["ctx"]["error"], Refusal)


def test_task_keys_of_the_space(digits):
    spec = load_spec(digits, ["space.task.hidden=[32, 64]"]).spec
    assert spec.space_task_keys == ("hidden",)
