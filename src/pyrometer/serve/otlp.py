"""POST /v1/logs, /v1/traces and /v1/metrics: takes what training processes send, over OTLP/HTTP.

A body that was acknowledged is on disk (`store/inbox.py`), and is stored within seconds. When more waits than should,
the answer is 503, after which every sender tries again. What of a body cannot be used is said in the answer, as OTLP's
partial success; what is of others is passed over.

The same inbox is where `pyrometer run --data` puts what it has to say to the folder of a server: it is looked at every
second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pyrometer.collect import otlp
from pyrometer.collect.otlp import OtlpError, Received, TooLargeError
from pyrometer.serve.bodies import BODY_S, RETRY_S, body_of
from pyrometer.serve.disk import UNWRITTEN
from pyrometer.serve.keeping import storing
from pyrometer.serve.threads import to_its_end
from pyrometer.serve.training import SENT, Training, signal_of, suffix_of, was_sent
from pyrometer.store.inbox import of_training

if TYPE_CHECKING:
    from pyrometer.serve.app import Server

MOST_AT_ONCE, MOST_BYTES_AT_ONCE = 256, 256 * 2**20  # bodies that are on their way in; a machine's has a few kB
MOST_WAITING = 200_000  # messages: 8,000 ranks for four minutes, 200 MB
MOST_WAITING_BYTES = 512 * 2**20  # of bodies: a message may be a stack of 64 kB, and a thousand of them pack to nothing
STORE_EVERY_S = 1.0

JSON, PROTOBUF = "application/json", "application/x-protobuf"
# The answer to a signal, and what it calls the records that were refused.
_ANSWERS: dict[str, tuple[Any, str]] = {
    "logs": (ExportLogsServiceResponse, "rejected_log_records"),
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
}

_log = logging.getLogger("pyrometer")


class _Sent(NamedTuple):
    """A body as it was sent, and who waits to hear what became of it."""

    signal: str
    body: bytes
    is_json: bool
    packed: bool
    received: asyncio.Future[Received]


class Otlp:
    """What was sent, on its way to the store. It is stored as long as the server is `keeping` it."""

    def __init__(self, server: Server) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  # records by signal and what became of them
        self._server = server
        self._inbox = of_training(server.store.folder)
        self._training = Training(
            server.store, self._inbox, node_uid_of=lambda host: server.node_uid_of(host),
            follows=lambda: server.collector is not None,
        )  # fmt: skip
        self._unread: list[_Sent] = []
        self._reading: asyncio.Task[None] | None = None
        self._inside = self._inside_bytes = 0
        self._arrived: list[tuple[Path, Received]] = []
        self._waiting = self._waiting_bytes = 0

    def route(self, signal: str) -> Callable[[Request], Awaitable[Response]]:
        """The route of a signal. 200: what can be used of the body will be in the store, whatever happens."""

        async def take(request: Request) -> Response:
            return await self._take(signal, request)

        return take

    async def _take(self, signal: str, request: Request) -> Response:
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        foreign = _foreign(request.headers, kind)
        if foreign:
            return _refusal(kind, 415, foreign)
        size = _announced(request.headers)
        crowded = self._inside >= MOST_AT_ONCE or self._inside_bytes + size > MOST_BYTES_AT_ONCE
        if crowded or self._waiting >= MOST_WAITING or self._waiting_bytes >= MOST_WAITING_BYTES:
            return _refusal(kind, 503, f"More is waiting to be stored than should: try again in {RETRY_S} s.")
        self._inside, self._inside_bytes = self._inside + 1, self._inside_bytes + size
        try:
            body = await body_of(request, otlp.MOST_PACKED_BYTES)
            packed = request.headers.get("Content-Encoding", "").strip().lower() == "gzip"
            received = await self._read(signal, body, is_json=kind == JSON, packed=packed)
        except TooLargeError as error:
            return _refusal(kind, 413, str(error))
        except OtlpError as error:
            return _refusal(kind, 400, str(error))
        except (TimeoutError, ClientDisconnect):
            return _refusal(kind, 408, f"The body did not come within {BODY_S:g} s.")
        except OSError as error:
            self._server.disk.failed(UNWRITTEN, error)
            return _refusal(kind, 503, "The disk of the server takes nothing: try again later.")
        finally:
            self._inside, self._inside_bytes = self._inside - 1, self._inside_bytes - size
        self._server.disk.worked(UNWRITTEN)
        self._count(signal, received)
        return _answer(kind, signal, received.refused)

    async def _read(self, signal: str, body: bytes, *, is_json: bool, packed: bool) -> Received:
        """What a body says, once it is on disk. Those that come while others are read are read next, together: a disk
        takes as long for many as for one."""
        sent = _Sent(signal, body, is_json, packed, asyncio.get_running_loop().create_future())
        self._unread.append(sent)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_all())
        return await sent.received

    async def _read_all(self) -> None:
        while self._unread:
            sent, self._unread = self._unread, []
            path, found = await asyncio.to_thread(self._read_together, sent)
            for one, received in zip(sent, found, strict=True):
                if isinstance(received, Received) and received.size and path is not None:
                    self._arrived.append((path, received))
                    self._waiting += received.size
                    self._waiting_bytes += received.body_bytes
                if one.received.done():  # whoever sent it is gone
                    continue
                if isinstance(received, Received):
                    one.received.set_result(received)
                else:
                    one.received.set_exception(received)

    def _read_together(self, sent: list[_Sent]) -> tuple[Path | None, list[Received | Exception]]:
        """What each of them says, or why it says nothing; and the file that those are in which say something."""
        found: list[Received | Exception] = []
        kept: list[tuple[str, bytes]] = []
        now_ms = time.time_ns() // 1_000_000
        for signal, body, is_json, packed, _ in sent:
            try:
                unpacked = otlp.unpacked(body, "gzip" if packed else "")
                received = otlp.read(signal, unpacked, is_json=is_json, now_ms=now_ms)
            except Exception as error:  # told to whoever sent it, and to nobody else
                found.append(error)
                continue
            found.append(received)
            if received.size:
                kept.append((suffix_of(signal, is_json=is_json, packed=packed), body))
        try:
            return self._keep(kept), found
        except OSError as error:
            return None, [error if isinstance(one, Received) and one.size else one for one in found]

    def _keep(self, bodies: list[tuple[str, bytes]]) -> Path | None:
        if len(bodies) > 1:
            return self._inbox.put_together(bodies, f".{SENT}")
        return self._inbox.put(bodies[0][1], bodies[0][0]) if bodies else None

    def _count(self, signal: str, received: Received) -> None:
        self.counts[signal, "taken"] += received.size
        for reason, count in (received.left_out + received.refused).items():
            self.counts[signal, reason] += count

    # -- on to the store ----------------------------------------------------------------------------------------------

    @property
    def stored(self) -> int:
        """How many records were stored."""
        return self._training.stored

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Stores what has come, beginning with what a crash left; at the end, all of it."""
        await asyncio.to_thread(self._look, everything=True)
        async with storing(
            lambda last: self.store(everything=last), STORE_EVERY_S, "was sent over OTLP", self._server.disk
        ):
            yield

    async def store(self, *, everything: bool = False) -> None:
        """Stores what has come. What cannot be stored now stays, on disk too."""
        async with self._server.lock:
            await to_its_end(self._look)
            arrived, self._arrived = self._arrived, []
            for path, received in arrived:
                self._training.add(path, received)
            try:
                await to_its_end(self._training.store, everything=everything)
            finally:
                self._waiting = self._training.waiting + sum(received.size for _, received in self._arrived)
                since = sum(received.body_bytes for _, received in self._arrived)
                self._waiting_bytes = self._training.waiting_bytes + since

    def _look(self, *, everything: bool = False) -> None:
        """Reads what was put into the folder: by a process on this machine, or by a server before it crashed."""
        known = self._training.paths
        for path in self._inbox.paths():
            if path not in known and (everything or not was_sent(path)):
                for name, received in self._training.read(path):
                    self._count(signal_of(name), received)


def _announced(headers: Mapping[str, str]) -> int:
    """How large a body may turn out to be."""
    length = headers.get("Content-Length", "")
    return min(int(length), otlp.MOST_PACKED_BYTES) if length.isdecimal() else otlp.MOST_PACKED_BYTES


def _foreign(headers: Mapping[str, str], kind: str) -> str | None:
    """Why a body is in another form than ours."""
    packing = headers.get("Content-Encoding", "").strip().lower()
    if packing not in ("", "identity", "gzip"):
        return f"Content-Encoding {packing!r} is neither gzip nor identity."
    if kind not in (JSON, PROTOBUF):
        return f"Content-Type {kind!r} is neither {PROTOBUF} nor {JSON}."
    return None


def _answer(kind: str, signal: str, refused: Counter[str]) -> Response:
    """OTLP's answer in the form of the question; what was refused is its partial success."""
    response, rejected = _ANSWERS[signal]
    count, words = refused.total(), ", ".join(f"{reason}: {count}" for reason, count in sorted(refused.items()))
    if kind == PROTOBUF:
        partial = {"partial_success": {rejected: count, "error_message": words}} if count else {}
        return Response(response(**partial).SerializeToString(), media_type=PROTOBUF)
    first, *others = rejected.split("_")
    named = first + "".join(map(str.capitalize, others))
    said = {"partialSuccess": {named: str(count), "errorMessage": words}} if count else {}
    return Response(json.dumps(said), media_type=JSON)


def _refusal(kind: str, status: int, text: str) -> Response:
    """A google.rpc.Status with that text, in the form of the question."""
    headers = {"Retry-After": str(RETRY_S)} if status == 503 else None
    if kind == PROTOBUF:
        message = text.encode()
        length = (
            bytes([len(message)]) if len(message) < 0x80 else bytes([len(message) & 0x7F | 0x80, len(message) >> 7])
        )
        return Response(b"\x12" + length + message, status, headers, media_type=PROTOBUF)
    return Response(json.dumps({"message": text}), status, headers, media_type=JSON)
