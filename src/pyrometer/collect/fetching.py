"""One GET over a connection of its own: what a scrape needs of HTTP, and no more.

h11 reads the protocol, asyncio has the connection. A client with pools, redirects, cookies and proxies takes four times
as long for an answer, and thousands of exporters are asked every quarter of a minute.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

import h11
import httpx2 as httpx

READ_BYTES = 2**18

ProtocolError = h11.RemoteProtocolError


class UrlError(ValueError):
    """An address that is none of HTTP."""


class ConnectTimeoutError(TimeoutError):
    """Nobody takes the call."""


@lru_cache(maxsize=2**16)
def parsed(url: str) -> httpx.URL:
    """A URL, taken apart. The same ones come again and again."""
    try:
        return httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError):
        raise UrlError(url) from None


class Answer:
    """The head of an answer, and its body as it comes."""

    def __init__(self, reader: asyncio.StreamReader, connection: h11.Connection, head: h11.Response) -> None:
        self.status = head.status_code
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        self._reader, self._connection = reader, connection

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, as it is on the wire. One that ends before its time raises an error."""
        while not isinstance(event := await _next(self._reader, self._connection), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)


@asynccontextmanager
async def get(
    url: str, headers: Mapping[str, str], trust: ssl.SSLContext, *, connect_s: float
) -> AsyncIterator[Answer]:
    """Asks for a URL. How long the answer may take is the caller's business."""
    address = parsed(url)
    if address.scheme not in ("http", "https") or not address.host:
        raise UrlError(url)
    tls = address.scheme == "https"
    connecting = asyncio.open_connection(
        address.host, address.port or (443 if tls else 80), limit=READ_BYTES, ssl=trust if tls else None
    )
    try:
        async with asyncio.timeout(connect_s):
            reader, writer = await connecting
    except TimeoutError:
        raise ConnectTimeoutError from None
    try:
        connection = h11.Connection(h11.CLIENT)
        sent = {"Host": address.netloc.decode("ascii"), "Connection": "close", **_basic(address), **headers}
        request = h11.Request(method="GET", target=address.raw_path, headers=list(sent.items()))
        writer.write((connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b""))
        while not isinstance(head := await _next(reader, connection), h11.Response):
            pass  # 1xx: more is to come
        yield Answer(reader, connection, head)
    finally:
        writer.transport.abort()


async def _next(reader: asyncio.StreamReader, connection: h11.Connection) -> h11.Event | type[Any]:
    """The next thing that the other side says."""
    while (event := connection.next_event()) is h11.NEED_DATA:
        data = await reader.read(READ_BYTES)
        if not data and connection.their_state is h11.SEND_RESPONSE:
            raise ProtocolError("it hangs up without an answer")
        connection.receive_data(data)
    return event


def _basic(address: httpx.URL) -> dict[str, str]:
    """Who asks, where the address says it."""
    if not address.userinfo:
        return {}
    who = f"{address.username}:{address.password}".encode()
    return {"Authorization": f"Basic {base64.b64encode(who).decode('ascii')}"}
