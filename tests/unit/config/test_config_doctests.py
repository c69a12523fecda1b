"""The examples in docstrings are true."""

from __future__ import annotations

import doctest

import pytest

from orchestrator.config import duration, optimizers


@pytest.mark.parametrize("module", [duration, optimizers])
def test_doctests(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
