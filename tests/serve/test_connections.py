"""Connections that dawdle end, and the others go on: the protocol by itself, with little patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from pyrometer.serve import connections
from pyrometer.serve.connections import Bounded

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Connect = Callable[[], Coroutine[Any, Any, tuple[Reader, Writer]]]
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def _answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Says `ok`, or, at the end of its body, which headers there were; or, to who asks for everything, more than
    anybody's buffers hold, in pieces or as a whole."""
    if scope["path"] == "/headers":
        while (await receive()).get("more_body"):
            pass
        said = b" ".join(name for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"said", said)]})
        await send({"type": "http.response.body"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    for _ in range(400 if scope["path"] == "/all" else 0):
        await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
    await send({"type": "http.response.body", "body": b"x" * 20_000_000 if scope["path"] == "/whole" else b"ok"})


@asynccontextmanager
async def listening(state: ServerState) -> AsyncIterator[Connect]:
    config = uvicorn.Config(_answer, log_config=None)  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Bounded(config, state, {}), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    writers: list[Writer] = []

    async def connect() -> tuple[Reader, Writer]:
        reader, writer = await asyncio.open_connection(host, port)
        writers.append(writer)
        return reader, writer

    try:
        yield connect
    finally:
        for writer in writers:
            writer.close()
        server.close()
        while state.connections:
            await asyncio.sleep(0)


def run(test: Callable[[Connect, ServerState], Coroutine[Any, Any, None]]) -> None:
    async def running() -> None:
        state = ServerState()
        async with asyncio.timeout(20), listening(state) as connect:
            await test(connect, state)

    asyncio.run(running())


async def ended(reader: Reader) -> bytes:
    """What is read until the server hangs up."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize("said", [b"", b"GET / HTT", b"GET / HTTP/1.1\r\nX: ", GET + b"GET / ", GET])
def test_a_head_that_does_not_come_ends_its_connection(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.1)

    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(said)
        assert (b"200 OK" in await ended(reader)) == said.startswith(GET)

    run(test)


def test_the_rest_of_a_body_is_not_waited_for_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.1)

    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
        await reader.readuntil(b"ok")
        reading = asyncio.ensure_future(ended(reader))
        while not reading.done():
            writer.write(b"x")  # never as many
            await asyncio.sleep(0.01)
        assert not state.connections

    run(test)


CHUNKED = b"POST /headers HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /", b"x" * 1000),
        (b"GET / HTTP/1.1\r\nX: ", b"x" * 1000),
        (b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 100),
        (GET + b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 100),
        (CHUNKED + b"1\r\nx\r\n0\r\nX: ", b"x" * 1000),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"X: y\r\n" * 100),
        (CHUNKED + b"1;", b"x" * 1000),
    ],
    ids=["path", "header", "headers", "second", "trailer", "trailers", "extension"],
)
def test_heads_and_what_else_is_no_body_do_not_grow_for_ever(begin: bytes, more: bytes) -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        reading = asyncio.ensure_future(ended(reader))
        writer.write(begin)
        sent = 0
        while not reading.done():
            writer.write(more)
            sent += len(more)
            with suppress(ConnectionError):
                await writer.drain()
            await asyncio.sleep(0)
            assert sent < 50_000_000
        assert b"said" not in reading.result()

    run(test)


def test_headers_behind_a_body_are_none() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(CHUNKED + b"1\r\nx\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
        assert b"said: host transfer-encoding\r\n" in await reader.readuntil(b"\r\n\r\n")

    run(test)


def test_who_asks_one_thing_after_the_other_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.3)

    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        for _ in range(10):
            writer.write(GET)
            assert b"200 OK" in await reader.readuntil(b"0\r\n\r\n")
            await asyncio.sleep(0.05)
        writer.write(GET * 3)  # at once
        for _ in range(3):
            await reader.readuntil(b"0\r\n\r\n")

    run(test)


def test_an_answer_that_nobody_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.1)

    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET.replace(b"/", b"/all", 1))
        while not state.tasks:
            await asyncio.sleep(0)
        while state.connections:
            await asyncio.sleep(0.01)

    run(test)


@pytest.mark.heavy
def test_who_reads_slowly_is_read_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 1.0)

    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(GET.replace(b"/", b"/whole", 1))
        read = 0
        while read < 10_000_000:  # in pieces, for longer than nothing may be read; systems hand over a megabyte at once
            read += len(await reader.read(65_536))
            await asyncio.sleep(0.015)
        assert state.connections

    run(test)


def test_when_all_are_taken_who_has_waited_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)

    async def test(connect: Connect, state: ServerState) -> None:
        first, *others = [await connect() for _ in range(3)]
        while len(state.connections) < 3:
            await asyncio.sleep(0)
        newest, writer = await connect()
        writer.write(GET)
        assert b"200 OK" in await newest.readuntil(b"0\r\n\r\n")
        assert await ended(first[0]) == b""
        for reader, writer in others:
            writer.write(GET)
            assert b"200 OK" in await reader.readuntil(b"0\r\n\r\n")

    run(test)
