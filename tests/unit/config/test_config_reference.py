"""The reference of keys is what the spec says now."""

from __future__ import annotations

from pathlib import Path

from orchestrator.config.reference import reference


def test_the_page_is_up_to_date() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "guide" / "spaces.md"
    assert page.read_text() == reference(), "renew it: python -m orchestrator.config.reference > docs/guide/spaces.md"
