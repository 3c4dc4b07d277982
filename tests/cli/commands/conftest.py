"""Data folders that several commands are tested on."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from pyrometer.model.records import Price
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import Store
from tests.support.hand_ledgers import job_records, ms_of, node_records
from tests.support.traced_run import TrainingRecords


@pytest.fixture(scope="session")
def trained() -> TrainingRecords:
    """A traced training run with a bad sample."""
    return TrainingRecords()


@pytest.fixture(scope="session")
def trained_folder(trained, tmp_path_factory):
    """A data folder with the traced run. Tests only read it."""
    where = tmp_path_factory.mktemp("trained") / "data"
    with trained.store(where) as store:
        store.seal()
    return where


@pytest.fixture
def two_months(tmp_path: Path) -> Path:
    """Two GPU hours in October and two in November, half of which are held."""
    october_ms = ms_of(date(2026, 10, 31)) + 20 * MS_PER_HOUR
    november_ms = ms_of(date(2026, 11, 2))
    with Store(tmp_path / "data", create=True) as store:
        store.append(
            [
                Price(october_ms, 2_000_000, 0),
                *node_records(october_ms, october_ms + 2 * MS_PER_HOUR),
                *node_records(november_ms, november_ms + MS_PER_HOUR),
                *job_records("nlp", "one", october_ms, october_ms + MS_PER_HOUR),
                *job_records("vision", "two", november_ms, november_ms + MS_PER_HOUR),
            ]
        )
    return tmp_path / "data"
