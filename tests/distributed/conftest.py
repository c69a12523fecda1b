"""Two and four gloo processes for the whole session: starting them costs more than any test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import Gang


@pytest.fixture(scope="session")
def two() -> Iterator[Gang]:
    gang = Gang(2)
    yield gang
    gang.close()


@pytest.fixture(scope="session")
def four() -> Iterator[Gang]:
    gang = Gang(4)
    yield gang
    gang.close()
