"""The architecture page is short, and its links lead to files of this checkout."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
MAX_WORDS = 2_500


def test_architecture_page_is_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").split()) < MAX_WORDS


def test_architecture_links_lead_to_existing_files() -> None:
    links = re.findall(r"\]\((\.\./[^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(links) > 40  # every hop of both walks
    assert [link for link in links if not (PAGE.parent / link).is_file()] == []
