"""A run as the SDK sends it, and a store with it."""

from __future__ import annotations

import pytest

from tests.support.traced_run import TrainingRecords


@pytest.fixture(scope="module")
def trained():
    """A run as the SDK sends it."""
    return TrainingRecords()


@pytest.fixture(scope="module")
def store(trained, tmp_path_factory):
    """A store with the records of that run."""
    with trained.store(tmp_path_factory.mktemp("trained") / "data") as store:
        yield store
