"""Real data for the tasks: tables from scikit-learn's bundled sets, and a cache folder of this session's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_diabetes, load_wine

from orchestrator.tasks.byte_corpus import CACHE_VARIABLE


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(folder))
        yield folder


def _columns(data: np.ndarray, names: list[str]) -> dict[str, np.ndarray]:
    return {name: data[:, i] for i, name in enumerate(names)}


@pytest.fixture(scope="session")
def wine_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """178 rows of 13 numbers, a string column and the label ``cultivar`` of 3 classes."""
    wine = load_wine()
    columns = _columns(wine.data, wine.feature_names)
    path = tmp_path_factory.mktemp("wine") / "wine.parquet"
    colour = np.where(columns["color_intensity"] > 5, "deep", "light")
    pq.write_table(pa.table({**columns, "colour": colour, "cultivar": wine.target}), path)
    return path


@pytest.fixture(scope="session")
def diabetes_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """442 rows of 10 numbers and the label ``progression``, 25 to 346."""
    diabetes = load_diabetes()
    path = tmp_path_factory.mktemp("diabetes") / "diabetes.parquet"
    pq.write_table(pa.table({**_columns(diabetes.data, diabetes.feature_names), "progression": diabetes.target}), path)
    return path


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes columns as a Parquet file and gives its path."""

    def _write(**columns: object) -> str:
        path = tmp_path / "table.parquet"
        pq.write_table(pa.table(columns), path)
        return str(path)

    return _write
