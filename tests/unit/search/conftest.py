"""Searches over journals in the test's own folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_search import SPACE, Search


@pytest.fixture
def search(tmp_path: Path) -> Callable[..., Search]:
    def make(
        space: dict[str, Any] = SPACE,
        *,
        kind: str = "best_metric",
        metric: str = "val/loss",
        name: str = "study",
        **options: Any,
    ) -> Search:
        return Search(tmp_path / f"{name}.journal", space=space, kind=kind, metric=metric, **options)

    return make
