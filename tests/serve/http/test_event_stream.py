"""What is live: everybody hears it, late comers hear how things stand, nobody slow holds up the others."""

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


def told(text: str) -> list[tuple[str, dict]]:
    events = [dict(line.split(": ", 1) for line in one.splitlines()) for one in text.split("\n\n") if "event: " in one]
    return [(event["event"], json.loads(event["data"])) for event in events]


def test_all_hear_it_and_who_comes_later_hears_how_things_stand() -> None:
    async def test() -> None:
        told_to = EventStream()
        first = told_to.events()
        assert told(await anext(first)) == []
        told_to.send("ledger", {"revision": "a"}, lasting=True)
        told_to.send("finding", {"id": "f"})
        told_to.send("ledger", {"revision": "a"}, lasting=True)  # no news
        second = told_to.events()
        assert told(await anext(second)) == [("ledger", {"revision": "a"})]
        heard = [told(await anext(first))[0] for _ in range(2)]
        assert heard == [("ledger", {"revision": "a"}), ("finding", {"id": "f"})]
        told_to.end()
        assert [one async for one in first] == [one async for one in second] == []
        assert not told_to._listeners

    asyncio.run(test())


def test_who_does_not_read_loses_what_is_old() -> None:
    async def test() -> None:
        told_to = EventStream()
        slow = told_to.events()
        await anext(slow)
        for number in range(3 * MAX_UNREAD):
            told_to.send("ledger", {"number": number})
        heard = [told(await anext(slow))[0][1]["number"] for _ in range(MAX_UNREAD)]
        assert heard == list(range(2 * MAX_UNREAD, 3 * MAX_UNREAD))

    asyncio.run(test())


def test_silence_is_broken_now_and_then(monkeypatch) -> None:
    monkeypatch.setattr(event_stream, "KEEPALIVE_S", 0.01)

    async def test() -> None:
        events = EventStream().events()
        await anext(events)
        assert (await anext(events)).startswith(":")

    asyncio.run(test())


def test_a_finding_is_told_once_and_a_ledger_when_it_changes(tmp_path: Path) -> None:
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
            heard = [one async for text in events for one in told(text)]
        revisions = [news["revision"] for kind, news in heard if kind == "ledger"]
        assert len(revisions) == len(set(revisions)) == 3  # what was found is written down
        newest = [news for kind, news in heard if kind == "ledger"][-1]
        assert (newest["to"], newest["origin"]) == (iso(clusters.at(120), UTC), "recorded")
        assert server.accounting.news == newest  # a page that is opened later gets it with its session
        found = [news["id"] for kind, news in heard if kind == "finding"]
        assert len(found) == len(set(found)) > 0

    asyncio.run(test())


@pytest.mark.heavy
def test_a_server_that_is_listened_to_still_stops(tmp_path: Path) -> None:
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
            assert told(text)[0][1]["revision"]
        assert all(one.startswith(":") for one in texts)  # to its end: it was not cut off
        answer.close()
