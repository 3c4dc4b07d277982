"""Fixtures for tests of the server."""

from __future__ import annotations

import pytest

from pyrometer.serve.tasks import accounting


@pytest.fixture(autouse=True)
def _accounting_never_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer includes all stored records, even on a slow machine, so that tests need not wait."""
    monkeypatch.setattr(accounting, "REST_FACTOR", 0)
