"""Connections that take neither for ever nor all there are: a client that dawdles loses its own, and slows nobody down.

uvicorn waits without end for a request's head, however long it becomes, and for a client to read its answer; and when
all connections are taken, nobody gets another. Requests are read by httptools (2 MB, the parser of Node.js): a sender's
takes 0.3 ms of CPU from its connection to its answer; with h11, which is written in Python, it takes 0.42.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 10.0  # for the head of a request to come, from its connection, or the answer before, on
UNREAD_S = 60.0  # for a client to read any more of its answer
MOST_HEAD_BYTES = 2**16  # and of anything else of a request that is not its body
MOST_CONNECTIONS = 800  # below the usual limit of 1,024 open files


class Bounded(HttpToolsProtocol):
    """One connection, with an end to everything that its client is waited for; bodies have theirs in `bodies.py`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It begins; when there are too many, one that asks for nothing ends."""
        super().connection_made(transport)
        self._head = _Limit(self.loop, HEAD_S, self.abort)
        self._reading = _Limit(self.loop, UNREAD_S, self._check_reading)
        self._unread_bytes = 0
        self._in_head = self._came_on = False
        self._beside_bytes = 0  # since a head was whole, or some of a body came
        self._head.start()
        if len(self.connections) > MOST_CONNECTIONS:
            self._longest_waiting().abort()

    def data_received(self, data: bytes) -> None:
        """Some of a request came: once its head is whole, the time for that is over."""
        self._came_on = False
        super().data_received(data)
        if self._is_at_work():
            self._head.stop()
        self._beside_bytes = 0 if self._came_on else self._beside_bytes + len(data)
        if self._beside_bytes > MOST_HEAD_BYTES:
            self.abort()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; one that comes behind the body is none."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole. The parser is lenient: of two hosts, others may believe another one than we do."""
        self._in_head, self._came_on = False, True
        version, hosts = self.parser.get_http_version(), sum(name == b"host" for name, _ in self.headers)
        if version not in ("1.0", "1.1") or hosts > 1 or (version == "1.1" and not hosts):
            raise ValueError("not HTTP")  # the parser's callbacks say so by an error; it is answered with 400
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of the body came."""
        self._came_on = True
        super().on_body(body)

    def on_response_complete(self) -> None:
        """The next request may come."""
        super().on_response_complete()
        if not (self.transport.is_closing() or self._is_at_work()):  # else it was here already
            self._head.start()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._reading.start()

    def resume_writing(self) -> None:
        """It reads on."""
        super().resume_writing()
        self._reading.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._head.stop()
        self._reading.stop()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Ends it at once."""
        self.transport.abort()

    def _check_reading(self) -> None:
        """Whoever has read on, however slowly, may go on."""
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes < self._unread_bytes:
            self._unread_bytes = unread_bytes
            self._reading.start()
        else:
            self.abort()

    def _is_at_work(self) -> bool:
        """Whether a request is not answered yet. After that, the rest of its body may be as late as the next head."""
        return self.cycle is not None and not self.cycle.response_complete

    def _longest_waiting(self) -> Bounded:
        """The connection whose request has been waited for the longest; this one, when all others have one."""
        waiting = [one for one in self.connections if isinstance(one, Bounded) and one._head.due_s is not None]
        return min(waiting, key=lambda one: one._head.due_s or 0.0, default=self)


class _Limit:
    """A time after which something happens, unless it is stopped before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, length_s: float, then: Callable[[], None]) -> None:
        self._loop, self._length_s, self._then = loop, length_s, then
        self._timer: asyncio.TimerHandle | None = None

    @property
    def due_s(self) -> float | None:
        """When that will be; None when it has not begun."""
        return self._timer.when() if self._timer else None

    def start(self) -> None:
        """From now on."""
        self.stop()
        self._timer = self._loop.call_later(self._length_s, self._then)

    def stop(self) -> None:
        """Not any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
