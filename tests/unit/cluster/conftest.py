"""A journal in memory."""

from __future__ import annotations

import pytest
from posts import ListJournal


@pytest.fixture
def journal() -> ListJournal:
    return ListJournal()
