"""POST /api/v1/write inside of one process: who may, what is refused, and that what was acknowledged is stored once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import duckdb
import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyrometer.collect.prometheus.remote_write import MAX_PACKED_BYTES
from pyrometer.model import events
from pyrometer.questions.tokens import Tokens
from pyrometer.serve.ingest import remote_write_receiver
from pyrometer.serve.main import Services
from pyrometer.store import Store
from tests.support.exporter_texts import Gpu
from tests.support.remote_write_bodies import USEFUL, body_of, series_of
from tests.support.server_in_process import server_and_client

HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
GPUS = [Gpu(0), Gpu(1, host="node-b")]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def in_store(
    folder: Path, talk: Callable[[Services, httpx.AsyncClient], Awaitable[Any]], *, crash: bool = False, **nodes: str
) -> dict[str, list[Any]]:
    """The records in the store after requests to a server."""

    async def run() -> None:
        async with server_and_client(store, crash=crash, uid_of=nodes.get) as (server, client):
            await talk(server, client)

    with Store(folder, create=True) as store:
        asyncio.run(run())
        store.expose_all(["gpu_sample", "slot", "event"])
        return {
            kind: store.connection.execute(f"FROM {kind} ORDER BY ALL").fetchall()
            for kind in ("gpu_sample", "slot", "event")
        }


async def send(client: httpx.AsyncClient, body: bytes, **headers: str) -> httpx.Response:
    changed = HEADERS | {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.post("/api/v1/write", content=body, headers=changed)


def test_split_scrape_sent_twice_is_stored_once(tmp_path: Path) -> None:
    at_ms = now_ms() - 2000
    series = [one for number in range(3) for one in series_of(GPUS, at_ms + 1000 * number)]

    async def in_pieces(server: Services, client: httpx.AsyncClient) -> None:
        for size in (5, 7):  # the second time cut otherwise
            for begin in range(0, len(series), size):
                answer = await send(client, body_of(series[begin : begin + size]))
                assert (answer.status_code, answer.content) == (204, b"")

    async def at_once(server: Services, client: httpx.AsyncClient) -> None:
        for _ in range(2):
            assert (await send(client, body_of(series))).status_code == 204
            await server.remote_write.store(remote_write_receiver.ALL)

    pieces, whole = (
        in_store(tmp_path / "pieces", in_pieces),
        in_store(tmp_path / "whole", at_once, **{"node-b": "uid-b"}),
    )
    assert len(pieces["gpu_sample"]) == 6
    assert None not in pieces["gpu_sample"][0]
    assert {row[1] for row in pieces["gpu_sample"]} == {"host/node-a", "host/node-b"}
    assert {row[1] for row in whole["gpu_sample"]} == {"host/node-a", "uid-b"}
    named = {
        kind: sorted(tuple("host/node-b" if v == "uid-b" else v for v in row) for row in rows)
        for kind, rows in whole.items()
    }
    assert named == {kind: sorted(rows) for kind, rows in pieces.items()}
    assert not list((tmp_path / "pieces" / "inbox").iterdir())


def test_acknowledged_samples_survive_a_crash(tmp_path: Path) -> None:
    at_ms = now_ms()

    async def talk(server: Services, client: httpx.AsyncClient) -> None:
        assert (await send(client, body_of(series_of(GPUS, at_ms)[:5]))).status_code == 204

    async def rest(server: Services, client: httpx.AsyncClient) -> None:
        assert (await send(client, body_of(series_of(GPUS, at_ms)[5:]))).status_code == 204

    assert in_store(tmp_path, talk, crash=True)["gpu_sample"] == []
    (tmp_path / "inbox" / "00000000000000000001.tmp").write_bytes(b"half of a bo")
    stored = in_store(tmp_path, rest)["gpu_sample"]
    assert [None in row for row in stored] == [False, False]
    assert not list((tmp_path / "inbox").iterdir())


@pytest.mark.parametrize("moment", ["_take", "_store"])
def test_cancelled_store_loses_no_scrapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    at_ms, inside, go_on = now_ms(), threading.Event(), threading.Event()
    handing_on = getattr(remote_write_receiver.RemoteWriteReceiver, moment)

    def slowly(self: remote_write_receiver.RemoteWriteReceiver, *values: float) -> None:
        inside.set()
        assert go_on.wait(10)
        handing_on(self, *values)

    async def stopped(server: Services, client: httpx.AsyncClient) -> None:
        assert (await send(client, body_of(series_of(GPUS, at_ms)))).status_code == 204
        with monkeypatch.context() as slow:
            slow.setattr(remote_write_receiver.RemoteWriteReceiver, moment, slowly)
            storing = asyncio.create_task(server.remote_write.store(remote_write_receiver.ALL))
            assert await asyncio.to_thread(inside.wait, 10)
            storing.cancel()
            asyncio.get_running_loop().call_later(0.05, go_on.set)
            with pytest.raises(asyncio.CancelledError):
                await storing

    assert len(in_store(tmp_path, stopped)["gpu_sample"]) == len(GPUS)
    assert list((tmp_path / "inbox").glob("*.bodies")) == []


def test_late_values_are_stored_and_late_codes_are_no_events(tmp_path: Path) -> None:
    """A sender that was cut off brings the past, another one is behind: an error comes once."""
    at_ms = now_ms() - 3 * 3_600_000

    async def talk(server: Services, client: httpx.AsyncClient) -> None:
        for seconds, xid in ((0, 0), (20, 79), (10, 0), (20, 79), (40, 79), (30, 79)):
            await send(client, body_of(series_of([Gpu(0, xid=xid)], at_ms + 1000 * seconds)))
            await server.remote_write.store(remote_write_receiver.ALL)
            server.core.store.seal()

    stored = in_store(tmp_path, talk)
    assert [row[0] - at_ms for row in stored["gpu_sample"]] == [0, 10_000, 20_000, 30_000, 40_000]
    assert [(row[0] - at_ms, row[1]) for row in stored["event"]] == [(20_000, events.XID_ERROR)]
    assert [(row[0] - at_ms, row[5]) for row in stored["slot"]] == [(0, True), (20_000, False)]


def test_restarted_server_knows_unhealthy_slots(tmp_path: Path) -> None:
    at_ms = now_ms() - 60_000

    async def breaks(server: Services, client: httpx.AsyncClient) -> None:
        for seconds, xid in ((0, 0), (1, 79)):
            await send(client, body_of(series_of([Gpu(0, xid=xid)], at_ms + 1000 * seconds)))

    async def goes_on(server: Services, client: httpx.AsyncClient) -> None:
        await send(client, body_of(series_of([Gpu(0, xid=79)], at_ms + 2000)))

    in_store(tmp_path, breaks)
    assert [row[5] for row in in_store(tmp_path, goes_on)["slot"]] == [True, False]


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"nonsense", {}, 400, "The body of 8 bytes is not a WriteRequest"),
        (b"\x80\x80\x80\x80\x10", {}, 413, "has 4294967296 bytes unpacked"),
        (bytes(MAX_PACKED_BYTES + 1), {}, 413, "larger than 16 MiB"),
        (b"", {"Content_Encoding": "zstd"}, 415, "Content-Encoding 'zstd' is not snappy."),
        (b"", {"Content_Type": "application/json"}, 415, "Content-Type 'application/json' is not"),
        (b"", {"X_Prometheus_Remote_Write_Version": "2.0.0"}, 415, "Remote write 2.0.0 is not supported"),
        (b"", {"Content_Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}, 415, "Send 1.0"),
    ],
)
def test_rejected_body_gets_status_and_reason(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    async def talk(server: Services, client: httpx.AsyncClient) -> None:
        answer = await send(client, body, **headers)
        assert answer.status_code == status
        assert words in answer.json()["error"]

    assert in_store(tmp_path, talk)["gpu_sample"] == []


def test_equivalent_protobuf_encoding_is_accepted(tmp_path: Path) -> None:
    async def talk(server: Services, client: httpx.AsyncClient) -> None:
        body = body_of(series_of(GPUS, now_ms()))
        kind = "application/x-protobuf; proto=prometheus.WriteRequest"
        assert (await send(client, body, Content_Type=kind)).status_code == 204

    assert len(in_store(tmp_path, talk)["gpu_sample"]) == 2


def test_sending_requires_the_ingest_permission(tmp_path: Path) -> None:
    async def talk(server: Services, client: httpx.AsyncClient) -> None:
        body = body_of(series_of(GPUS, now_ms()))
        assert (await send(client, body, Host="evil.example")).status_code == 403
        secrets = {role: Tokens(tmp_path).create(role, role, 0) for role in ("ingest", "viewer", "admin")}
        assert (await send(client, body)).status_code == 401
        for role, status in (("viewer", 403), ("ingest", 204), ("admin", 204)):
            assert (await send(client, body, Authorization=f"Bearer {secrets[role]}")).status_code == status
        page = await client.get("/metrics", headers={"Authorization": f"Bearer {secrets['admin']}"})
        (family,) = (f for f in text_string_to_metric_families(page.text) if "remote_write" in f.name)
        counts = {sample.labels["outcome"]: sample.value for sample in family.samples}
        assert counts == {"taken": 2 * 2 * USEFUL, "other metric": 2 * 2}

    assert len(in_store(tmp_path, talk)["gpu_sample"]) == 2


class TestTooMuch:
    def test_busy_store_does_not_delay_senders(self, tmp_path: Path) -> None:
        async def talk(server: Services, client: httpx.AsyncClient) -> None:
            async with server.core.lock:
                assert (await send(client, body_of(series_of(GPUS, now_ms())))).status_code == 204

        assert len(in_store(tmp_path, talk)["gpu_sample"]) == 2

    def test_full_queue_answers_503(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_write_receiver, "MAX_WAITING", 10)
        at_ms = now_ms()

        async def talk(server: Services, client: httpx.AsyncClient) -> None:
            assert (await send(client, body_of(series_of(GPUS, at_ms)))).status_code == 204
            refused = await send(client, body_of(series_of(GPUS, at_ms + 1)))
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
            await server.remote_write.store(remote_write_receiver.ALL)
            assert (await send(client, body_of(series_of(GPUS, at_ms + 1)))).status_code == 204

        assert len(in_store(tmp_path, talk)["gpu_sample"]) == 4

    def test_too_many_concurrent_bodies_answer_503(self, tmp_path: Path) -> None:
        begun, release = asyncio.Semaphore(0), asyncio.Event()
        at_ms = now_ms()

        async def slowly(body: bytes) -> AsyncIterator[bytes]:
            begun.release()
            yield body[:10]
            await release.wait()
            yield body[10:]

        async def talk(server: Services, client: httpx.AsyncClient) -> None:
            def post(number: int) -> Awaitable[httpx.Response]:
                body = slowly(body_of(series_of(GPUS, at_ms + number)))
                return client.post("/api/v1/write", content=body, headers=HEADERS)

            slow = [asyncio.ensure_future(post(number)) for number in range(remote_write_receiver.MAX_REQUESTS)]
            for _ in slow:
                await begun.acquire()
            assert (await send(client, body_of(series_of(GPUS, at_ms + 99)))).status_code == 503
            release.set()
            assert {answer.status_code for answer in await asyncio.gather(*slow)} == {204}
            assert (await send(client, body_of(series_of(GPUS, at_ms + 99)))).status_code == 204

        assert len(in_store(tmp_path, talk)["gpu_sample"]) == 2 * (remote_write_receiver.MAX_REQUESTS + 1)

    def test_unwritable_disk_answers_503(self, tmp_path: Path) -> None:
        async def talk(server: Services, client: httpx.AsyncClient) -> None:
            (tmp_path / "inbox").write_text("in the way")
            body = body_of(series_of(GPUS, now_ms()))
            assert (await send(client, body)).status_code == 503
            (tmp_path / "inbox").unlink()
            assert (await send(client, body)).status_code == 204

        assert len(in_store(tmp_path, talk)["gpu_sample"]) == 2

    def test_unstorable_bodies_stay_on_disk(self, tmp_path: Path) -> None:
        async def talk() -> None:
            async with server_and_client(store) as (server, client):
                assert (await send(client, body_of(series_of(GPUS, now_ms())))).status_code == 204
                store.close()
                with pytest.raises(duckdb.Error):
                    await server.remote_write.store(remote_write_receiver.ALL)

        async def nothing(server: Services, client: httpx.AsyncClient) -> None:
            pass

        with Store(tmp_path, create=True) as store:
            asyncio.run(talk())
        assert len(list((tmp_path / "inbox").iterdir())) == 1
        assert len(in_store(tmp_path, nothing)["gpu_sample"]) == 2
        assert not list((tmp_path / "inbox").iterdir())
