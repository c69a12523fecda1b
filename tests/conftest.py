"""One Ray session and one MLflow database for the whole suite; folders of its own for every test."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
# A loaded machine must not fail a test: none of them is about time.
settings.register_profile("suite", deadline=None)
# Continuous integration tells of a change, by the same examples each time; new examples are looked for at home.
settings.register_profile("repeated", settings.get_profile("suite"), derandomize=True)
settings.load_profile("repeated" if os.environ.get("CI") else "suite")
PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A local Ray that counts eight CPUs, so that gangs of four fit on two cores."""
    import logging

    import ray

    ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def tracking_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fresh SQLite database; making its schema takes seconds, so the suite shares it."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture(scope="session")
def run_sweep(ray_session: None, tracking_uri: str) -> Callable[..., dict[str, Any]]:
    """Run a sweep as its command line would, in this process and the suite's Ray; returns its summary."""
    from orchestrator import sweep

    def run(space: str | Path, *settings: str, out: Path, expect: int = 0) -> dict[str, Any]:
        path = PROJECT / "search_spaces" / space if isinstance(space, str) else space
        argv = [str(path), "--out", str(out)]
        for setting in (f"tracking.uri={tracking_uri}", *settings):
            argv += ["--set", setting]
        assert sweep.main(argv) == expect
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        return summary

    return run
