"""The examples in the docstrings of theory run."""

import doctest
import importlib
import pkgutil

import pytest

from orchestrator import theory

MODULES = [module.name for module in pkgutil.iter_modules(theory.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    module = importlib.import_module(f"orchestrator.theory.{name}")
    assert doctest.testmod(module).failed == 0


def test_there_are_examples_to_run() -> None:
    modules = [importlib.import_module(f"orchestrator.theory.{name}") for name in MODULES]
    examples = {m.__name__: sum(len(t.examples) for t in doctest.DocTestFinder().find(m)) for m in modules}
    assert [name for name, count in examples.items() if not count] == ["orchestrator.theory._checks"]
