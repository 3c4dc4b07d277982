"""Connections that dawdle end, and the others go on: the protocol by itself, with little patience."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from pyrometer.serve.http import guard
from pyrometer.serve.http.guard import ADMIT, PIECE_BYTES, Connections, protocol

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Connect = Callable[..., Coroutine[Any, Any, tuple[Reader, Writer]]]
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def _answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answers `ok`; to `/known…` as to an authenticated client, to `/…body` when it has the body, to `/headers` with
    their names. To `/all` and `/…whole` with more than any buffer holds, in parts or at once."""
    if scope["path"].startswith("/known"):
        scope["state"][ADMIT](authenticated=True)
    if scope["path"].endswith("body"):
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
    if scope["path"] == "/headers":
        while (await receive()).get("more_body"):
            pass
        names = b" ".join(name for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"received", names)]})
        await send({"type": "http.response.body"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    for _ in range(400 if scope["path"] == "/all" else 0):
        await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
    await send({"type": "http.response.body", "body": b"x" * 20_000_000 if scope["path"].endswith("/whole") else b"ok"})


@asynccontextmanager
async def listening(state: ServerState) -> AsyncIterator[Connect]:
    config = uvicorn.Config(_answer, log_config=None)  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    make: Any = protocol()
    server = await loop.create_server(lambda: make(config, state, {}), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    writers: list[Writer] = []

    async def connect(of: str = "127.0.0.1") -> tuple[Reader, Writer]:
        reader, writer = await asyncio.open_connection(host, port, local_addr=(of, 0))
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


@pytest.mark.parametrize("sent", [b"", b"GET / HTT", b"GET / HTTP/1.1\r\nX: ", GET + b"GET / ", GET])
def test_incomplete_head_closes_the_connection(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "HEAD_S", 0.1)

    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(sent)
        assert (b"200 OK" in await ended(reader)) == sent.startswith(GET)

    run(test)


def test_unread_rest_of_a_body_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "HEAD_S", 0.1)

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
def test_heads_and_trailers_are_bounded(begin: bytes, more: bytes) -> None:
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
        assert b"received" not in reading.result()

    run(test)


def test_trailers_are_ignored() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(CHUNKED + b"1\r\nx\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
        assert b"received: host transfer-encoding\r\n" in await reader.readuntil(b"\r\n\r\n")

    run(test)


def test_keepalive_connection_with_requests_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "HEAD_S", 0.3)

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


def test_unread_answer_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "WRITE_S", 0.1)

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
def test_slow_reader_gets_the_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "WRITE_S", 1.0)

    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(GET.replace(b"/", b"/whole", 1))
        read = 0
        while read < 10_000_000:  # in pieces, for longer than nothing may be read; systems hand over a megabyte at once
            read += len(await reader.read(65_536))
            await asyncio.sleep(0.015)
        assert state.connections

    run(test)


def test_full_server_closes_the_longest_waiting_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 3)

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


def get(path: bytes, body_bytes: int = 0) -> bytes:
    length = b"Content-Length: %d\r\n" % body_bytes if body_bytes else b""
    return b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n"


async def settled(state: ServerState, count: int) -> None:
    while len(state.connections) != count:
        await asyncio.sleep(0.001)


async def closed(*connections: tuple[Reader, Writer]) -> None:
    """Each of them is closed by the server, though none of their clients reads."""
    for reader, _ in connections:
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        await ended(reader)


# What an anonymous client can do with a connection, and the state that the server must have reached.
ANONYMOUS = {
    "silent": b"",
    "half_a_head": b"GET / HTTP/1.1\r\nX: ",
    "no_body": get(b"/body", 100),
    "answered": get(b"/"),
    "not_reading": get(b"/whole"),
    "second_head": get(b"/") + b"GET / HT",
    "known_before": get(b"/known") + get(b"/body", 100),
}


@pytest.mark.parametrize("state_of", ANONYMOUS)
def test_full_server_closes_anonymous_connections_in_every_state(
    state_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is doing, when those of its address are too many; authenticated requests are answered meanwhile."""
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 12)
    monkeypatch.setattr(guard, "MAX_ANONYMOUS", 4)
    for limit in ("HEAD_S", "WRITE_S"):
        monkeypatch.setattr(guard, limit, 100.0)

    async def test(connect: Connect, state: ServerState) -> None:
        known = [await connect() for _ in range(3)]
        for _, writer in known:
            writer.write(get(b"/known/body", 3))
        hostile = []
        for number in range(30):
            reader, writer = await connect()
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(ANONYMOUS[state_of])
            hostile.append((reader, writer))
            if not number % 5:  # another client is answered
                probe, writer = await connect()
                writer.write(get(b"/known"))
                assert b"200 OK" in await probe.readuntil(b"ok")
                writer.close()
        assert len(state.connections) <= 12
        await closed(*hostile[:15])
        for reader, writer in known:
            writer.write(b"abc")
            assert b"200 OK" in await reader.readuntil(b"ok")

    run(test)


def test_idle_connection_is_closed_before_a_new_anonymous_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 3)

    async def test(connect: Connect, state: ServerState) -> None:
        idle = []
        for _ in range(3):
            reader, writer = await connect()
            writer.write(get(b"/known"))
            await reader.readuntil(b"0\r\n\r\n")
            idle.append((reader, writer))
        new = [await connect(), await connect()]  # many senders at once
        for _, writer in new:
            writer.write(get(b"/known"))
        for reader, _ in new:
            assert b"200 OK" in await reader.readuntil(b"ok")
        await closed(*idle[:2])  # those that have been idle the longest
        idle[2][1].write(get(b"/known"))
        assert b"200 OK" in await idle[2][0].readuntil(b"ok")

    run(test)


@pytest.mark.parametrize(("limit", "value", "pause_s"), [("STALE_S", 0.05, 0.02), ("MAX_ANONYMOUS_TOTAL", 3, 0.0)])
def test_many_anonymous_addresses_are_closed_before_idle_connections(
    limit: str, value: float, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each address has few of them, so that none is a flood; they come slowly, or all at once."""
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 6)
    monkeypatch.setattr(guard, limit, value)

    async def test(connect: Connect, state: ServerState) -> None:
        known = [await connect() for _ in range(2)]
        for reader, writer in known:
            writer.write(get(b"/known"))
            await reader.readuntil(b"0\r\n\r\n")
        for number in range(2, 22):
            await connect(f"127.0.0.{number}")
            await asyncio.sleep(pause_s)
        await settled(state, 6)
        for reader, writer in known:
            writer.write(get(b"/known"))
            assert b"200 OK" in await reader.readuntil(b"ok")

    run(test)


def test_new_connection_is_closed_when_all_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 3)

    async def test(connect: Connect, state: ServerState) -> None:
        known = [await connect() for _ in range(3)]
        for _, writer in known:
            writer.write(get(b"/known/body", 3))
        while len(state.tasks) < 3:
            await asyncio.sleep(0)
        new = await connect()
        assert await ended(new[0]) == b""
        for reader, writer in known:
            writer.write(b"abc")
            assert b"200 OK" in await reader.readuntil(b"ok")

    run(test)


def test_stuck_authenticated_client_is_closed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(guard, "STUCK_S", 0.05)

    async def test(connect: Connect, state: ServerState) -> None:
        for _ in range(3):
            reader, writer = await connect()
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(get(b"/known/whole"))
        while not all(one.not_reading_s > 0.05 for one in state.connections):
            await asyncio.sleep(0.01)
        new, writer = await connect()
        writer.write(get(b"/known"))
        assert b"200 OK" in await new.readuntil(b"ok")
        assert len(state.connections) == 3

    run(test)


class Held:
    """A connection as the table of them sees it."""

    def __init__(self, table: Connections, network: str) -> None:
        self.table, self.network, self.aborted, self.not_reading_s = table, network, False, 0.0

    def abort(self) -> None:
        assert not self.aborted
        self.aborted = True
        self.table.remove(self)  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "known", "rest", "next", "answer", "lost"]), st.integers(0, 9)), max_size=80
    )
)
def test_authenticated_requests_are_never_closed_for_new_connections(steps: list[tuple[str, int]]) -> None:
    """Nor are there ever more connections, or more bytes of answers, than there may be."""
    shared = [bytes(size) for size in (3, 5, 8)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(guard, "MAX_CONNECTIONS", 6)
        patched.setattr(guard, "MAX_ANONYMOUS", 2)
        patched.setattr(guard, "MAX_RESPONSE_BYTES", 10)
        table: Any = Connections()
        open_: list[Any] = []
        busy: set[Any] = set()
        sending: dict[Any, Any] = {}
        for what, number in steps:
            one = open_[number % len(open_)] if open_ else None
            before = set(busy)
            if what == "add":
                one = Held(table, f"192.0.2.{number % 3}")
                open_.append(one)
                table.add(one)
                assert not any(other.aborted for other in before)
                assert not one.aborted or len(busy) == 6
            elif one is None:
                continue
            elif what == "known":
                table.set_busy(one)
                busy.add(one)
            elif what == "rest":
                table.set_idle(one)
                busy.discard(one)
            elif what == "next":
                table.set_waiting(one)
                busy.discard(one)
            elif what == "answer":
                if one in sending:
                    sending.pop(one).__exit__(None, None, None)
                anonymous = {other for other in sending if table.is_anonymous(other)}
                sending[one] = table.sending(one, shared[number % 3])
                sending[one].__enter__()
                assert not one.aborted
                if any(other.aborted for other in before):  # only when no other is left
                    assert all(other.aborted for other in anonymous - {one})
            else:
                one.abort()
            open_ = [other for other in open_ if not other.aborted]
            for other in [other for other in sending if other.aborted]:
                sending.pop(other).__exit__(None, None, None)
            busy = {other for other in busy if not other.aborted}
            assert len(open_) <= 6
            assert set(table._groups) == set(open_)
            held = {id(answer): len(answer) for answer in table._answers.values()}
            assert table._answer_bytes == sum(held.values()) <= max(10, *held.values(), 0)


@pytest.mark.parametrize("path", [b"/all", b"/whole"])
def test_unread_answer_holds_one_piece_in_memory(path: bytes) -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(get(path))
        (one,) = state.connections
        while not one.flow.write_paused:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0.001)
            assert one.transport.get_write_buffer_size() <= PIECE_BYTES + 1_000

    run(test)


def test_single_bytes_do_not_count_as_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "WRITE_S", 0.5)

    async def test(connect: Connect, state: ServerState) -> None:
        await connect()
        (one,) = state.connections
        with socket.create_connection(one.server) as slow:
            slow.setblocking(False)
            slow.sendall(get(b"/whole"))
            await settled(state, 2)
            while len(state.connections) == 2:
                with suppress(BlockingIOError):
                    slow.recv(1)
                await asyncio.sleep(0.01)

    run(test)


def test_last_piece_has_the_same_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline for the next head begins when the answer has left, and not when it is written."""
    monkeypatch.setattr(guard, "HEAD_S", 0.1)

    async def test(connect: Connect, state: ServerState) -> None:
        await connect()
        (one,) = state.connections
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # the end stays with the server
            slow.connect(one.server)
            slow.setblocking(False)
            slow.sendall(get(b"/known/whole"))
            loop, read = asyncio.get_running_loop(), 0
            while read < 20_000_000:
                got = len(await loop.sock_recv(slow, 65_536))
                assert got, f"the answer ends after {read:,} bytes"
                read += got
                if read > 20_000_000 - PIECE_BYTES:
                    await asyncio.sleep(0.02)

    run(test)


@pytest.mark.parametrize("path", [b"/whole", b"/all", b"/body", b"/"])
def test_pipelined_requests_are_limited_and_not_logged(path: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        (one,) = state.connections
        most = 0
        writer.write((get(path) + GET) * 5_000)
        while state.connections:
            most = max(most, len(one.pipeline))
            await asyncio.sleep(0)
            with suppress(ConnectionError):
                await reader.read(1_000_000)
        assert most <= guard.MAX_PIPELINED
        while state.tasks:
            await asyncio.sleep(0)

    run(test)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("ends", [b"", b"\x00 not HTTP\r\n\r\n"])
def test_disconnect_during_pipelined_answers_is_not_logged(ends: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(get(b"/whole") + get(b"/all") + GET)
        (one,) = state.connections
        while not one.flow.write_paused:
            await asyncio.sleep(0)
        writer.write(ends)
        writer.transport.abort()
        while state.connections or state.tasks:
            await asyncio.sleep(0)

    run(test)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
