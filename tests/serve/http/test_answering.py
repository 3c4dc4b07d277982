"""Answers over HTTP: tags, cache, pages, limits, stale answers, and compression."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from pyrometer.model.settings import Settings
from pyrometer.questions import cache, registry
from pyrometer.serve.core import Core
from pyrometer.serve.http import answering
from pyrometer.serve.main import Services, build_services
from pyrometer.store import Store
from tests.support import clusters

Asking = Callable[[httpx.AsyncClient, Services], Coroutine[Any, Any, None]]


@asynccontextmanager
async def _asking(store: Store) -> AsyncIterator[tuple[httpx.AsyncClient, Services]]:
    server = build_services(Core(store, Settings()), open_to_all=True)
    transport = httpx.ASGITransport(server.application())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client, server


@pytest.fixture
def ask(tmp_path: Path) -> Callable[[Asking], None]:
    """Runs a test against the routes of a server, in this process."""

    def run(test: Asking) -> None:
        async def running() -> None:
            with Store(tmp_path, create=True) as store:
                store.append([*clusters.cluster(), *clusters.job()])
                async with _asking(store) as (client, server):
                    await test(client, server)

        asyncio.run(running())

    return run


def test_unchanged_answer_gets_304(ask: Callable[[Asking], None]) -> None:
    async def test(client: httpx.AsyncClient, server: Services) -> None:
        first = await client.get("/api/v1/cost?all=1&by=workload")
        tagged = {"If-None-Match": first.headers["ETag"]}
        again = await client.get("/api/v1/cost?all=1&by=workload", headers=tagged)
        assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
        assert again.headers["ETag"] == first.headers["ETag"]
        other = await client.get("/api/v1/cost?all=1&by=team", headers=tagged)
        assert other.status_code == 200
        server.core.store.append(clusters.samples("n0", 0, 0, 60, gpu_util_permille=900))
        changed = await client.get("/api/v1/cost?all=1&by=workload", headers=tagged)
        assert changed.status_code == 200
        assert changed.headers["ETag"] != first.headers["ETag"]

    ask(test)


def test_sealing_changes_no_answer_and_no_tag(ask: Callable[[Asking], None]) -> None:
    async def test(client: httpx.AsyncClient, server: Services) -> None:
        before = await client.get("/api/v1/why?all=1")
        server.core.store.seal()
        after = await client.get("/api/v1/why?all=1")
        assert (before.headers["ETag"], before.content) == (after.headers["ETag"], after.content)

    ask(test)


def test_cached_answer_is_not_computed_again(ask: Callable[[Asking], None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: httpx.AsyncClient, server: Services) -> None:
        first = await client.get("/api/v1/why?all=1")
        monkeypatch.setattr(registry, "why", None)
        assert (await client.get("/api/v1/why?all=1")).json() == first.json()

    ask(test)


def test_report_and_json_are_cached_separately(ask: Callable[[Asking], None]) -> None:
    async def test(client: httpx.AsyncClient, server: Services) -> None:
        report_json, page = await client.get("/api/v1/why?all=1"), await client.get("/report?all=1")
        assert report_json.headers["Content-Type"] == "application/json"
        assert page.headers["Content-Type"].startswith("text/html")
        assert "Content-Security-Policy" in page.headers
        assert report_json.headers["ETag"] != page.headers["ETag"]
        again = await client.get("/report?all=1", headers={"If-None-Match": page.headers["ETag"]})
        assert again.status_code == 304

    ask(test)


def test_long_answers_are_compressed_on_request(ask: Callable[[Asking], None]) -> None:
    async def test(client: httpx.AsyncClient, server: Services) -> None:
        async with client.stream("GET", "/api/v1/why?all=1", headers={"Accept-Encoding": "gzip"}) as answer:
            raw = b"".join([part async for part in answer.aiter_raw()])
        plain = await client.get("/api/v1/why?all=1", headers={"Accept-Encoding": "identity"})
        assert json.loads(gzip.decompress(raw)) == plain.json()
        assert "Content-Encoding" not in plain.headers
        assert len(raw) < len(plain.content) / 2

    ask(test)


def test_too_many_questions_get_429(ask: Callable[[Asking], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "MAX_ASKING", 3)
    go_on = threading.Event()
    why = registry.why

    def slow_why(*args: Any, **kwargs: Any) -> dict[str, Any]:
        assert go_on.wait(30)
        return why(*args, **kwargs)

    async def test(client: httpx.AsyncClient, server: Services) -> None:
        monkeypatch.setattr(registry, "why", slow_why)
        waiting = [asyncio.create_task(client.get(f"/api/v1/why?all=1&price={n}")) for n in range(3)]
        while server.answering._asking < 3:
            await asyncio.sleep(0)
        refused = await client.get("/api/v1/why?all=1&price=9")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert (await client.get("/healthz")).status_code == 200
        go_on.set()
        assert [(await one).status_code for one in waiting] == [200, 200, 200]
        assert (await client.get("/api/v1/why?all=1&price=9")).status_code == 200

    ask(test)


def test_stale_ok_returns_the_last_answer_and_announces_the_next(
    ask: Callable[[Asking], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "QUICK_S", -1.0)  # every answer counts as slow
    monkeypatch.setattr(cache, "MIN_PAUSE_S", 0.0)
    monkeypatch.setattr(cache, "REST_FACTOR", 0)
    cost = "/api/v1/cost?all=1&by=workload"

    async def test(client: httpx.AsyncClient, server: Services) -> None:
        news = server.events.events()
        await anext(news)
        first = await client.get(f"{cost}&stale=ok")  # there is no older answer
        server.core.store.append(clusters.job("later"))
        last = await client.get(f"{cost}&stale=ok")
        assert (last.headers["ETag"], last.json()) == (first.headers["ETag"], first.json())
        assert (await client.get(cost)).json() != first.json()  # without stale=ok the answer is new
        assert "event: answer" in await anext(news)
        following = await client.get(f"{cost}&stale=ok", headers={"If-None-Match": first.headers["ETag"]})
        assert "later" in str(following.json())
        assert (await client.get(f"{cost}&stale=maybe")).status_code == 400

    ask(test)


def test_pages_belong_to_one_answer_while_the_store_changes(ask: Callable[[Asking], None]) -> None:
    async def test(client: httpx.AsyncClient, server: Services) -> None:
        whole = (await client.get("/api/v1/cost?all=1&by=hour,state,node")).json()
        page = (await client.get("/api/v1/cost?all=1&by=hour,state,node&limit=3")).json()
        rows, pages = page["rows"], 1
        while page["next"] is not None:
            server.core.store.append(clusters.samples("n0", 0, 10 * pages, 10 * pages + 10, gpu_util_permille=900))
            page = (await client.get("/api/v1/cost", params={"limit": 3, "cursor": page["next"]})).json()
            assert len(page["rows"]) <= 3
            rows += page["rows"]
            pages += 1
        assert (rows, pages) == (whole["rows"], -(-len(whole["rows"]) // 3))
        assert pages > 1
        assert page["total"] == whole["total"]

    ask(test)


def test_unknown_cursor_is_refused(ask: Callable[[Asking], None]) -> None:
    async def test(client: httpx.AsyncClient, server: Services) -> None:
        gone = await client.get("/api/v1/runs?cursor=Vy8iYSIgMw==")
        senseless = await client.get("/api/v1/runs?limit=0")
        assert (gone.status_code, senseless.status_code) == (410, 400)
        assert gone.json()["error"]
        assert senseless.json()["error"]

    ask(test)
