"""Reads a source into a data folder and accounts for it, as `pyrometer import` does."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.names import open_names
from pyrometer.account.query.sums import sums
from pyrometer.account.query.time_range import TimeRange
from pyrometer.collect.source import drain
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.settings import Settings
from pyrometer.store import Store

NEVER_MS = 4_000_000_000_000  # a clock that is later than any record


class Reading:
    """A data folder that sources are read into."""

    def __init__(self, folder):
        self.store = Store(folder, create=True)

    def close(self):
        if self.store is not None:
            self.store.close()
            self.store = None

    def take(self, source, settings=None):
        """Reads a source and builds the ledger of everything stored."""

        async def read():
            return [delivery.progress async for delivery in drain(source, self.store)]

        progress = asyncio.run(read())
        self.store.seal()
        build(self.store, settings or Settings(), now_ms=NEVER_MS)
        return progress

    def ask(self, query, *values):
        return self.store.connection.execute(query, list(values)).fetchall()

    def rows(self, *kinds):
        """All stored rows of some kinds, in a fixed order."""
        self.store.expose_all(kinds)
        return {kind: self.ask(f"FROM {kind} ORDER BY ALL") for kind in kinds}

    def all_rows(self):
        return self.rows(*SCHEMAS)

    def hours_by(self, grouping):
        """GPU-hours by a grouping of `pyrometer cost`, exactly."""
        open_names(self.store)
        groups = sums(self.store, TimeRange(0, NEVER_MS), [grouping], zone=UTC)
        return {group.key[0]: group.gpu_ms / 3_600_000 for group in groups}


@pytest.fixture(scope="session")
def new_reading():
    """Opens data folders that read sources."""
    opened = []

    def open_one(folder):
        opened.append(Reading(folder))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def reading(new_reading, tmp_path):
    """An empty data folder that reads sources."""
    with closing(new_reading(tmp_path / "data")) as opened:
        yield opened
