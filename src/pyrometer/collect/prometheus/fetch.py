"""One GET over a connection of its own: what a scrape needs of HTTP, and no more.

httptools reads the protocol, asyncio has the connection. A client with pools, redirects, cookies and proxies takes many
times as long for an answer, and thousands of exporters are asked every quarter of a minute.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import httptools
import httpx2 as httpx

MOST_HEAD_BYTES = 2**16


class UrlError(ValueError):
    """An address that is none of HTTP."""


class ConnectTimeoutError(TimeoutError):
    """Nobody takes the call."""


class ProtocolError(Exception):
    """What the other side says is no answer of HTTP."""


class AnswerTooLargeError(Exception):
    """The answer is larger than it may be."""


class FetchedAnswer(NamedTuple):
    """What came, as it was on the wire; not `whole`, where it ended before its time."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool


@lru_cache(maxsize=2**16)
def parsed(url: str) -> httpx.URL:
    """A URL, taken apart. The same ones come again and again."""
    try:
        return httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError):
        raise UrlError(url) from None


async def get(
    url: str, headers: Mapping[str, str], trust: ssl.SSLContext, *, connect_s: float, most_bytes: int
) -> FetchedAnswer:
    """Asks for a URL. How long the answer may take is the caller's business; one that is too large is given up."""
    address = parsed(url)
    if address.scheme not in ("http", "https") or not address.host:
        raise UrlError(url)
    tls = address.scheme == "https"
    sent = {"Host": address.netloc.decode("ascii"), "Connection": "close", **_basic(address), **headers}
    lines = [f"GET {address.raw_path.decode('ascii')} HTTP/1.1", *(f"{name}: {text}" for name, text in sent.items())]
    loop = asyncio.get_running_loop()
    connecting = loop.create_connection(
        lambda: _Exchange(loop, most_bytes),
        address.host,
        address.port or (443 if tls else 80),
        ssl=trust if tls else None,
    )
    try:
        async with asyncio.timeout(connect_s):
            transport, exchange = await connecting
    except TimeoutError:
        raise ConnectTimeoutError from None
    try:
        transport.write("\r\n".join([*lines, "", ""]).encode("ascii"))
        return await exchange.answer
    finally:
        transport.abort()


class _Exchange(asyncio.Protocol):
    """One answer as it comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most_bytes: int) -> None:
        self.answer: asyncio.Future[FetchedAnswer] = loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._most_bytes = most_bytes
        self._status, self._head_bytes = 0, 0
        self._in_body = self._complete = False
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0

    # -- the connection's part ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Some of the answer."""
        if self.answer.done():
            return
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:  # what comes behind it is nobody's business
                self._fail(ProtocolError(str(error)))
                return
        if self._complete or self._is_refused():
            self._end(whole=self._complete)
        elif self._body_bytes > self._most_bytes or self._announced() > self._most_bytes:
            self._fail(AnswerTooLargeError())
        elif not self._in_body and self._head_bytes > MOST_HEAD_BYTES:
            self._fail(ProtocolError("its head has no end"))

    def connection_lost(self, error: Exception | None) -> None:
        """The other side hung up, as it may where nothing says how long the answer is."""
        if self.answer.done():
            return
        unbounded = self._in_body and not {"content-length", "transfer-encoding"} & set(self._headers)
        if unbounded and error is None:
            self._end(whole=True)
        elif self._body_bytes:
            self._end(whole=False)
        else:
            self._fail(error or ProtocolError("it hangs up without an answer"))

    # -- the parser's part --------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; behind the body there may be others, which are of no use."""
        if not self._in_body:
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._status = self._parser.get_status_code()
        if self._status < 200:  # more is to come
            self._headers = {}
        else:
            self._in_body = True

    def on_body(self, piece: bytes) -> None:
        """Some of the body."""
        self._body.append(piece)
        self._body_bytes += len(piece)

    def on_message_complete(self) -> None:
        """All of it is there."""
        self._complete = self._in_body

    # -- both ---------------------------------------------------------------------------------------------------------

    def _is_refused(self) -> bool:
        return self._in_body and self._status != 200  # whatever else it says

    def _announced(self) -> int:
        length = self._headers.get("content-length", "")
        return int(length) if self._in_body and length.isdecimal() else 0

    def _end(self, *, whole: bool) -> None:
        self.answer.set_result(FetchedAnswer(self._status, self._headers, b"".join(self._body), whole))

    def _fail(self, error: Exception) -> None:
        self.answer.set_exception(error)


def _basic(address: httpx.URL) -> dict[str, str]:
    """Who asks, where the address says it."""
    if not address.userinfo:
        return {}
    who = f"{address.username}:{address.password}".encode()
    return {"Authorization": f"Basic {base64.b64encode(who).decode('ascii')}"}
