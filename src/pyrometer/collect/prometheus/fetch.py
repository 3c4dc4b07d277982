"""A minimal HTTP GET for scrapes: one request per connection, with httptools and asyncio.

A full client with pools, redirects, cookies and proxies takes many times as long per request, and thousands of
exporters are scraped every 15 seconds.
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

MAX_HEAD_BYTES = 2**16


class UrlError(ValueError):
    """Not an HTTP URL."""


class ConnectTimeoutError(TimeoutError):
    """No connection within the time limit."""


class ProtocolError(Exception):
    """The response is not valid HTTP."""


class AnswerTooLargeError(Exception):
    """The response is larger than the limit."""


class FetchedAnswer(NamedTuple):
    """A response as received. `whole` is False if the connection ended too early."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool


@lru_cache(maxsize=2**16)
def parsed(url: str) -> httpx.URL:
    """Parses a URL. Cached, because the same URLs are scraped repeatedly."""
    try:
        return httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError):
        raise UrlError(url) from None


async def get(
    url: str, headers: Mapping[str, str], trust: ssl.SSLContext, *, connect_s: float, max_bytes: int
) -> FetchedAnswer:
    """Requests a URL. The caller limits the total time. A response that is too large is aborted."""
    address = parsed(url)
    if address.scheme not in ("http", "https") or not address.host:
        raise UrlError(url)
    tls = address.scheme == "https"
    sent = {"Host": address.netloc.decode("ascii"), "Connection": "close", **_basic(address), **headers}
    lines = [f"GET {address.raw_path.decode('ascii')} HTTP/1.1", *(f"{name}: {text}" for name, text in sent.items())]
    loop = asyncio.get_running_loop()
    connecting = loop.create_connection(
        lambda: _Exchange(loop, max_bytes),
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
    """Receives one response."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_bytes: int) -> None:
        self.answer: asyncio.Future[FetchedAnswer] = loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._max_bytes = max_bytes
        self._status, self._head_bytes = 0, 0
        self._in_body = self._complete = False
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0

    # -- asyncio.Protocol --------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Part of the response was received."""
        if self.answer.done():
            return
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:  # data after the response is ignored
                self._fail(ProtocolError(str(error)))
                return
        if self._complete or self._is_refused():
            self._end(whole=self._complete)
        elif self._body_bytes > self._max_bytes or self._announced() > self._max_bytes:
            self._fail(AnswerTooLargeError())
        elif not self._in_body and self._head_bytes > MAX_HEAD_BYTES:
            self._fail(ProtocolError("its headers exceed the size limit"))

    def connection_lost(self, error: Exception | None) -> None:
        """The connection was closed, which ends a response without a length."""
        if self.answer.done():
            return
        unbounded = self._in_body and not {"content-length", "transfer-encoding"} & set(self._headers)
        if unbounded and error is None:
            self._end(whole=True)
        elif self._body_bytes:
            self._end(whole=False)
        else:
            self._fail(error or ProtocolError("it closed the connection without a response"))

    # -- parser callbacks ---------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. Trailers after the body are ignored."""
        if not self._in_body:
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """All headers were received."""
        self._status = self._parser.get_status_code()
        if self._status < 200:  # an interim response
            self._headers = {}
        else:
            self._in_body = True

    def on_body(self, piece: bytes) -> None:
        """Part of the body was received."""
        self._body.append(piece)
        self._body_bytes += len(piece)

    def on_message_complete(self) -> None:
        """The response is complete."""
        self._complete = self._in_body

    # -- state --------------------------------------------------------------------------------------------------------

    def _is_refused(self) -> bool:
        return self._in_body and self._status != 200  # its body is not used

    def _announced(self) -> int:
        length = self._headers.get("content-length", "")
        return int(length) if self._in_body and length.isdecimal() else 0

    def _end(self, *, whole: bool) -> None:
        self.answer.set_result(FetchedAnswer(self._status, self._headers, b"".join(self._body), whole))

    def _fail(self, error: Exception) -> None:
        self.answer.set_exception(error)


def _basic(address: httpx.URL) -> dict[str, str]:
    """The Authorization header for the credentials in a URL."""
    if not address.userinfo:
        return {}
    credentials = f"{address.username}:{address.password}".encode()
    return {"Authorization": f"Basic {base64.b64encode(credentials).decode('ascii')}"}
