"""A spec on disk that a test can change, and what its task says."""

from __future__ import annotations

import pytest

from orchestrator.config.check import Facts, check_spec
from orchestrator.config.load import load_spec
from orchestrator.errors import ConfigError

DIGITS = """\
task: {name: digits, model: mlp, hidden: 64}
objective: {metric: val/accuracy}
batch: {global: 64, reference: 64}
space:
  batch.global: [16, 32, 64]
  lr.base: {low: 0.01, high: 1.0, log: true}
  lr.rule: [none, sqrt]
"""


@pytest.fixture
def digits(tmp_path):
    """Path of a small, valid spec."""
    path = tmp_path / "digits.yaml"
    path.write_text(DIGITS)
    return path


@pytest.fixture
def facts():
    """What the task of `digits` says about itself."""
    return Facts(
        train_samples=1437,
        val_samples=360,
        metric_modes={"loss": "min", "accuracy": "max"},
        task_options=("model", "hidden"),
    )


@pytest.fixture
def refused(digits):
    """Load `digits` with overrides and return the refusal; the test fails if there is none."""

    def load(*overrides):
        with pytest.raises(ConfigError) as caught:
            load_spec(digits, overrides)
        assert caught.value.exit_code == 2
        return caught.value

    return load


@pytest.fixture
def check(digits, facts):
    """Load `digits` with overrides and check it: the warnings."""

    def run(*overrides, **changes):
        loaded = load_spec(digits, overrides)
        return check_spec(loaded.spec, Facts(**{**vars(facts), **changes}), file=str(digits), set_keys=loaded.set_keys)

    return run


@pytest.fixture
def check_refused(check):
    """Check `digits` with overrides and return the refusal; the test fails if there is none."""

    def run(*overrides, **changes):
        with pytest.raises(ConfigError) as caught:
            check(*overrides, **changes)
        assert caught.value.exit_code == 2
        return caught.value

    return run
