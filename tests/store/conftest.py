"""A data folder for a test, and one for many examples of a law."""

from __future__ import annotations

import pytest

from pyrometer.store import Store


@pytest.fixture
def folder(tmp_path):
    """Where the `store` of this test is."""
    return tmp_path / "it's the data"  # a quote and spaces, as in people's home folders


@pytest.fixture
def store(folder):
    """An open, empty store."""
    with Store(folder, create=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def lasting_store(tmp_path_factory):
    """A store for laws: opening one for every example would be most of the time. Empty it with `drop_before`."""
    with Store(tmp_path_factory.mktemp("lasting"), create=True) as opened:
        yield opened
