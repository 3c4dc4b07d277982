"""The limits of HTTP: of connections, of bodies, and headers of every response. Authentication is elsewhere.

uvicorn waits without limit for the head of a request and for a client that reads slowly, copies a whole response into
the buffer of its connection, and cannot spare known senders when there are too many connections. Here every wait has a
deadline, a connection holds one piece of a response, and when all connections are in use, one without an authenticated
request is closed for a new one. Requests are parsed by httptools (the parser of Node.js): a small request takes 0.28 ms
of CPU from connection to response, and 0.42 ms with h11, which is written in Python.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from operator import itemgetter
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from pyrometer.questions.host_addresses import network_of

HEAD_S = 10.0  # to receive the head of a request, from the connection or the previous answer on
WRITE_S = 60.0  # for a client to read one piece of an answer: about 1 KiB per second
STUCK_S = 5.0  # after which an authenticated client that does not read gives way, when no other connection can
PIECE_BYTES = 65_536  # of an answer, written at once; the next one is written when it has left
MAX_UNSENT_BYTES = 131_072  # of an answer in the kernel, beyond what is on the way to the client
MAX_HEAD_BYTES = 2**16  # of a head, and of any other part of a request that is not its body
MAX_PIPELINED = 4  # requests that wait on one connection for the answer to an earlier one
MAX_CONNECTIONS = 800  # below the usual limit of 1,024 open files
MAX_ANONYMOUS = 100  # connections of one address without an authenticated request, when all connections are in use
MAX_ANONYMOUS_TOTAL = 400  # of all addresses; the rest is for those that have had an authenticated request
STALE_S = 2.0  # after which any connection without one gives way before those that have had one
MAX_RESPONSE_BYTES = 256 * 2**20  # of all answers that are being sent; one that is sent to many clients counts once
BODY_S = 30.0  # for a whole body to arrive
RETRY_S = 5  # the value of `Retry-After` for senders
ADMIT = "admit"  # in the state of a request: the function to call when access is granted
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # charts set styles of their elements
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]  # as ASGI wants them
# Anybody can send bad HTTP: a warning for each would fill the log, and a log that is read slowly stops the server.
_errors = logging.getLogger("uvicorn.error.requests")
_errors.setLevel(logging.ERROR)
_DISCARD = struct.pack("ii", 1, 0)  # on, and no time: the kernel frees unsent data


def protocol() -> type[asyncio.Protocol]:
    """The HTTP protocol of one server, for uvicorn."""
    return cast("type[asyncio.Protocol]", partial(Connection, Connections()))


class Connections:
    """The open connections of one server, and which of them to close when there are too many.

    A connection is anonymous until one of its requests is authenticated, then busy while that request is answered,
    then idle. The next request is anonymous again until it is authenticated.
    """

    def __init__(self) -> None:
        # Each with the time when it was added, oldest first.
        self._anonymous: dict[str, dict[Connection, float]] = {}  # by address
        self._busy: dict[Connection, float] = {}
        self._idle: dict[Connection, float] = {}
        self._groups: dict[Connection, dict[Connection, float]] = {}  # the group of each connection
        self._answers: dict[Connection, bytes] = {}  # larger than one piece, and being sent
        self._senders: Counter[int] = Counter()  # of an answer, by identity: cached answers are shared
        self._answer_bytes = 0

    def add(self, new: Connection) -> None:
        """A new connection. Closes another one, or this one, when there are too many."""
        self.set_anonymous(new)
        if len(self._groups) > MAX_CONNECTIONS:
            self._victim(new).abort()

    def remove(self, one: Connection) -> None:
        """The connection is closed."""
        self._leave(one)
        self._release(one)

    def set_anonymous(self, one: Connection) -> None:
        """Nothing is known about the client, or no longer."""
        self._leave(one)
        self._enter(one, self._anonymous.setdefault(one.network, {}))

    def set_busy(self, one: Connection) -> None:
        """The request is authenticated."""
        self._leave(one)
        self._enter(one, self._busy)

    def set_idle(self, one: Connection) -> None:
        """The answer has left. An anonymous connection stays anonymous."""
        if self._groups.get(one) is self._busy:
            self._leave(one)
            self._enter(one, self._idle)

    def set_waiting(self, one: Connection) -> None:
        """The next request begins. An anonymous connection gains no time by that."""
        if one in self._groups and not self.is_anonymous(one):
            self.set_anonymous(one)

    def is_anonymous(self, one: Connection) -> bool:
        """Whether the connection has no authenticated request."""
        group = self._groups.get(one)
        return group is not self._busy and group is not self._idle

    @contextmanager
    def sending(self, one: Connection, answer: bytes) -> Iterator[None]:
        """While a large answer is sent. Closes the connections that read the slowest when all answers are too large."""
        self._release(one)
        self._answers[one] = answer
        self._senders[id(answer)] += 1
        self._answer_bytes += len(answer) if self._senders[id(answer)] == 1 else 0
        while self._answer_bytes > MAX_RESPONSE_BYTES and (slowest := self._slowest(other_than=one)) is not None:
            slowest.abort()
        try:
            yield
        finally:
            self._release(one)

    def _enter(self, one: Connection, group: dict[Connection, float]) -> None:
        group[one] = time.monotonic()
        self._groups[one] = group

    def _leave(self, one: Connection) -> None:
        group = self._groups.pop(one, None)
        if group is not None:
            del group[one]
            if not group and self._anonymous.get(one.network) is group:
                del self._anonymous[one.network]

    def _release(self, one: Connection) -> None:
        answer = self._answers.pop(one, None)
        if answer is not None:
            self._senders[id(answer)] -= 1
            if not self._senders[id(answer)]:
                del self._senders[id(answer)]
                self._answer_bytes -= len(answer)

    def _victim(self, new: Connection) -> Connection:
        """A flood of anonymous connections of one address comes first, then the oldest anonymous connection of any
        address: honest clients authenticate at once. If these are few and all new, the longest idle connection goes:
        its client has its answer. Then a client that does not read, any anonymous connection, and the new one when all
        others are busy."""
        crowd = max(self._anonymous.values(), key=len)
        if len(crowd) <= MAX_ANONYMOUS:
            oldest, since_s = min((next(iter(of.items())) for of in self._anonymous.values()), key=itemgetter(1))
            total = sum(map(len, self._anonymous.values()))
            if total > MAX_ANONYMOUS_TOTAL or time.monotonic() - since_s > STALE_S:
                return oldest
            if self._idle:
                return next(iter(self._idle))
            stuck = max(self._busy, key=lambda one: one.not_reading_s, default=new)
            if stuck.not_reading_s > STUCK_S:
                return stuck
        return next((one for one in crowd if one is not new), new)

    def _slowest(self, other_than: Connection) -> Connection | None:
        """Anonymous connections first; then the one that has not read for the longest time."""
        others = (one for one in self._answers if one is not other_than)
        return max(others, key=lambda one: (self.is_anonymous(one), one.not_reading_s), default=None)


class Connection(HttpToolsProtocol):
    """One connection. Every wait for its client has a deadline. The one for bodies is in `body_of`."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = _errors
        self.network = ""
        self._all = connections
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._application, self.app = self.app, self._answer
        self._head = _Limit(self.loop, HEAD_S, self.abort)
        self._write = _Limit(self.loop, WRITE_S, self.abort)
        self._in_head = self._progressed = self._is_lost = False
        self._unparsed_bytes = 0  # since a head was complete, or a part of a body arrived

    @property
    def not_reading_s(self) -> float:
        """For how long the client has not read the current piece of its answer."""
        return 0.0 if self._write.due_s is None else WRITE_S - (self._write.due_s - self.loop.time())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the deadline for the first head."""
        super().connection_made(transport)
        self.network = network_of(self.client[0] if self.client else "?")
        transport.set_write_buffer_limits(high=0)  # pause until a piece has left
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            with suppress(OSError):  # the kernel's own limit of 4 MB per connection is left
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
        self._head.start()
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        """Parses a part of a request. Its deadline ends when its head is complete."""
        self._progressed = False
        super().data_received(data)
        if self._is_at_work():
            self._head.stop()
        self._unparsed_bytes = 0 if self._progressed else self._unparsed_bytes + len(data)
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self.abort()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header, unless it comes after the body."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete. The parser is lenient: with two hosts, a proxy may believe the other one."""
        self._in_head, self._progressed = False, True
        version, hosts = self.parser.get_http_version(), sum(name == b"host" for name, _ in self.headers)
        if version not in ("1.0", "1.1") or hosts > 1 or (version == "1.1" and not hosts):
            raise ValueError("not HTTP")  # the parser reports an error of its callbacks, and the answer is 400
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests at once")
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Takes a part of a body."""
        self._progressed = True
        super().on_body(body)

    def on_response_complete(self) -> None:
        """The answer is written, though the client may not have read it completely."""
        self._unanswered.popleft()
        super().on_response_complete()
        self._rest()

    def pause_writing(self) -> None:
        """The client does not read as fast as the answer is written."""
        super().pause_writing()
        self._write.start()

    def resume_writing(self) -> None:
        """The client has read enough for the next piece."""
        super().resume_writing()
        self._write.stop()
        self._rest()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is not HTTP, and closes the connection."""
        self._disconnect()
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._stop()
        self._disconnect()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Closes the connection at once. What a client has not read is not kept for it, in the kernel neither."""
        discard = self.flow.write_paused
        self._stop()
        self._disconnect()
        sock = self.transport.get_extra_info("socket")
        if discard and sock is not None:
            with suppress(OSError):  # it is closed already
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD)
        self.transport.abort()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application. Large parts of its answer are written in pieces, so that a client that does not read
        holds one of them and not a copy of the answer."""
        self._all.set_waiting(self)
        scope["state"][ADMIT] = self._admit

        async def send_pieces(message: Message) -> None:
            body = message.get("body", b"")
            if len(body) <= PIECE_BYTES:
                await send(message)
                return
            with self._all.sending(self, body):
                for start in range(0, len(body), PIECE_BYTES):
                    await self.flow.drain()  # before the next piece is cut, so that there is one of them
                    if self._is_lost:
                        return
                    end = start + PIECE_BYTES
                    more = end < len(body) or message.get("more_body", False)
                    await send({"type": message["type"], "body": body[start:end], "more_body": more})

        await self._application(scope, receive, send_pieces)

    def _admit(self, *, authenticated: bool) -> None:
        """Grants access. Without authentication the connection stays anonymous, but is not the first to be closed."""
        if self.transport.is_closing():
            return
        if authenticated:
            self._all.set_busy(self)
        else:
            self._all.set_anonymous(self)

    def _rest(self) -> None:
        """Waits for the next request, once the last answer has left."""
        if self._is_at_work() or self.flow.write_paused or self.transport.is_closing():
            return
        self._all.set_idle(self)
        if self._head.due_s is None:
            self._head.start()

    def _stop(self) -> None:
        self._head.stop()
        self._write.stop()
        self._all.remove(self)

    def _disconnect(self) -> None:
        """Ends the answers to all requests. uvicorn ends the last one only, and writes a line to the log for each part
        of the others that it cannot send."""
        self._is_lost = True
        for request in self._unanswered:
            request.disconnected = True
            request.message_event.set()

    def _is_at_work(self) -> bool:
        """Whether a request is being answered. After that, the rest of its body may be as late as the next head."""
        return self.cycle is not None and not self.cycle.response_complete


class _Limit:
    """A time after which a function is called, unless it is stopped before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, length_s: float, then: Callable[[], None]) -> None:
        self._loop, self._length_s, self._then = loop, length_s, then
        self._timer: asyncio.TimerHandle | None = None

    @property
    def due_s(self) -> float | None:
        """When that is; None when it has not started."""
        return self._timer.when() if self._timer else None

    def start(self) -> None:
        """Starts, or starts again."""
        self.stop()
        self._timer = self._loop.call_later(self._length_s, self._then)

    def stop(self) -> None:
        """Stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


# -- requests and responses -------------------------------------------------------------------------------------------


async def body_of(request: Request, max_bytes: int, within_s: float = BODY_S) -> bytes:
    """The body of a request. Of a body that is too large, slightly more than `max_bytes` is returned: the caller
    refuses it."""
    body = bytearray()
    async with asyncio.timeout(within_s):
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                break
    return bytes(body)


class SecurityHeaders:
    """Adds the headers to every response. A response that has one of them keeps its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                added = (header for header in _RAW_HEADERS if header[0] not in present)
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, send_with_headers)


class SenderFastPath:
    """Calls the routes of senders without the search for a route and without compression, a fifth of their CPU. All
    other requests go to the application."""

    def __init__(self, app: ASGIApp, routes: Iterable[Route]) -> None:
        self._app = app
        self._routes = {route.path: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        route = self._routes.get(scope["path"]) if scope.get("method") == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope.update(route=route, path_params={})
        try:
            response = await route.endpoint(Request(scope, receive, send))
        except Exception:
            await PlainTextResponse("Internal Server Error", 500)(scope, receive, send)
            raise  # to the log
        await response(scope, receive, send)
