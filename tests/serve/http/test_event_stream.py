"""Server-sent events: late listeners get lasting events, and slow listeners delay no others."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC
from pathlib import Path

import httpx2 as httpx
import pytest

from pyrometer.account.query.answer_json import iso
from pyrometer.model.settings import Settings
from pyrometer.serve.core import Core
from pyrometer.serve.http import event_stream
from pyrometer.serve.http.event_stream import MAX_UNREAD, EventStream
from pyrometer.serve.main import build_services
from pyrometer.store import Store
from tests.support import clusters
from tests.support.server_process import serving


def parsed(text: str) -> list[tuple[str, dict]]:
    events = [dict(line.split(": ", 1) for line in one.splitlines()) for one in text.split("\n\n") if "event: " in one]
    return [(event["event"], json.loads(event["data"])) for event in events]


def test_listeners_get_events_and_late_ones_get_lasting_events() -> None:
    async def test() -> None:
        stream = EventStream()
        first = stream.events()
        assert parsed(await anext(first)) == []
        stream.send("ledger", {"revision": "a"}, lasting=True)
        stream.send("finding", {"id": "f"})
        stream.send("ledger", {"revision": "a"}, lasting=True)  # no news
        second = stream.events()
        assert parsed(await anext(second)) == [("ledger", {"revision": "a"})]
        received = [parsed(await anext(first))[0] for _ in range(2)]
        assert received == [("ledger", {"revision": "a"}), ("finding", {"id": "f"})]
        stream.end()
        assert [one async for one in first] == [one async for one in second] == []
        assert not stream._listeners

    asyncio.run(test())


def test_slow_listener_loses_the_oldest_events() -> None:
    async def test() -> None:
        stream = EventStream()
        slow = stream.events()
        await anext(slow)
        for number in range(3 * MAX_UNREAD):
            stream.send("ledger", {"number": number})
        received = [parsed(await anext(slow))[0][1]["number"] for _ in range(MAX_UNREAD)]
        assert received == list(range(2 * MAX_UNREAD, 3 * MAX_UNREAD))

    asyncio.run(test())


def test_idle_stream_sends_keepalives(monkeypatch) -> None:
    monkeypatch.setattr(event_stream, "KEEPALIVE_S", 0.01)

    async def test() -> None:
        events = EventStream().events()
        await anext(events)
        assert (await anext(events)).startswith(":")

    asyncio.run(test())


def test_finding_event_is_sent_once_and_ledger_event_on_change(tmp_path: Path) -> None:
    async def test() -> None:
        with Store(tmp_path, create=True) as store:
            store.append([*clusters.cluster(), *clusters.job(), *clusters.run()])
            store.append([*clusters.all_ranks(0, 40), *clusters.steps(0, 40, 41)])
            store.set_meta("origin", "recorded")
            server = build_services(Core(store, Settings(finding_min_usd_micro=0)), open_to_all=True)
            events = server.events.events()
            await anext(events)
            for _ in range(2):
                await server.accounting.update()
                await server.findings.look()
            store.append(clusters.samples("n0", 0, 0, 60, gpu_util_permille=900))
            await server.accounting.update()
            await server.findings.look()
            server.events.end()
            received = [one async for text in events for one in parsed(text)]
        revisions = [news["revision"] for kind, news in received if kind == "ledger"]
        assert len(revisions) == len(set(revisions)) == 3  # findings are stored
        newest = [news for kind, news in received if kind == "ledger"][-1]
        assert (newest["to"], newest["origin"]) == (iso(clusters.at(120), UTC), "recorded")
        assert server.accounting.news == newest  # a page that is opened later gets it with its session
        found = [news["id"] for kind, news in received if kind == "finding"]
        assert len(found) == len(set(found)) > 0

    asyncio.run(test())


@pytest.mark.heavy
def test_server_stops_while_a_client_listens(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        store.append([*clusters.cluster(), *clusters.job()])
    with httpx.Client(timeout=30) as listener:
        with serving(tmp_path) as client:
            answer = listener.send(listener.build_request("GET", f"{client.base_url}/api/v1/live"), stream=True)
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            assert "Content-Encoding" not in answer.headers
            texts = answer.iter_text()
            text = next(texts)
            while "event: ledger" not in text:
                text += next(texts)
            assert parsed(text)[0][1]["revision"]
        assert all(one.startswith(":") for one in texts)  # until the stream ends
        answer.close()
