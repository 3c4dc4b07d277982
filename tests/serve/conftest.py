"""What tests of the server share."""

from __future__ import annotations

import pytest

from pyrometer.serve.tasks import accounting


@pytest.fixture(autouse=True)
def _books_never_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored is in the next answer, however slow the machine is: a test that asks need not wait."""
    monkeypatch.setattr(accounting, "REST_FACTOR", 0)
