"""HTTP posts: their time is limited, whatever the receiver does."""

from __future__ import annotations

import asyncio
import gzip

from pyrometer.act import http_post as sending
from pyrometer.act.http_post import MAX_RESPONSE_BYTES, post
from tests.support.webhook_receiver import receiving


def test_slow_response_ends_with_the_time_limit(monkeypatch):
    monkeypatch.setattr(sending, "TOTAL_TIMEOUT_S", 0.3)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(b"HTTP/1.1 200 OK\r\n")
            while not writer.is_closing():
                writer.write(b"X-More: yes\r\n")
                await asyncio.sleep(0.02)
        finally:
            writer.close()

    async def sent() -> sending.SendResult:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        try:
            async with asyncio.timeout(10):
                return await post(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", {})
        finally:
            server.close()

    outcome = asyncio.run(sent())
    assert (outcome.sent, outcome.permanent) == (False, False)
    assert "no response" in outcome.error


def test_compressed_response_is_not_unpacked():
    with receiving() as receiver:
        receiver.answers.append((400, {"Content-Encoding": "gzip"}, gzip.compress(b"a" * 10_000_000)))
        outcome = asyncio.run(post(receiver.url, {}))
    assert outcome.error == "HTTP 400"
    assert len(outcome.response) <= MAX_RESPONSE_BYTES
