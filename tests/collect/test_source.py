"""Sources: deliveries are stored as a whole, in order, and once."""

from __future__ import annotations

import asyncio

import pytest

from pyrometer.collect.source import Delivery, SourceError, drain
from pyrometer.model.records import Event
from pyrometer.store import Store

NOON_MS = 1_760_054_400_000


class Listed:
    """A source of a few deliveries; one that is an error is raised."""

    def __init__(self, *deliveries):
        self.listed = deliveries

    async def deliveries(self):
        for delivery in self.listed:
            if isinstance(delivery, Exception):
                raise delivery
            yield delivery


def events(store):
    store.expose_all(["event"])
    return [kind for (kind,) in store.connection.execute("SELECT kind FROM event ORDER BY time_ms").fetchall()]


def drained(source, store, **options):
    async def read():
        return [delivery async for delivery in drain(source, store, **options)]

    return asyncio.run(read())


def delivery(*kinds, progress=0.0):
    return Delivery([Event(NOON_MS + number, kind) for number, kind in enumerate(kinds)], progress)


def test_drain_stores_deliveries(tmp_path):
    with Store(tmp_path / "data", create=True) as store:
        given = drained(Listed(delivery("a", "b", progress=0.5), delivery("c", progress=1.0)), store)
        assert [one.progress for one in given] == [0.5, 1.0]
        assert sorted(events(store)) == ["a", "b", "c"]


def test_drain_yields_stored_deliveries(tmp_path):
    async def first(store):
        announced = drain(Listed(delivery("a"), delivery("b")), store)
        await anext(announced)
        seen = events(store)
        await announced.aclose()
        return seen

    with Store(tmp_path / "data", create=True) as store:
        assert asyncio.run(first(store)) == ["a"]


def test_drain_with_producer_stores_deliveries_once(tmp_path):
    with Store(tmp_path / "data", create=True) as store:
        for _ in range(2):
            drained(Listed(delivery("a"), delivery("b")), store, producer="node-1")
        tables = [name for (name,) in store.connection.execute("SELECT name FROM hot").fetchall()]
        assert sum(store.connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables) == 2


def test_drain_keeps_deliveries_before_an_error(tmp_path):
    with Store(tmp_path / "data", create=True) as store:
        with pytest.raises(SourceError, match="the line broke"):
            drained(Listed(delivery("a"), SourceError("the line broke"), delivery("b")), store)
        assert events(store) == ["a"]
