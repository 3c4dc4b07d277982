"""POST /v1/logs, /v1/traces and /v1/metrics: receives what training processes send over OTLP/HTTP.

A body that was acknowledged is on disk (`store/inbox.py`) and is stored within seconds. When too much is waiting, the
answer is 503, after which every sender tries again. Records that cannot be used are reported in the answer, as OTLP's
partial success. Records that are not Pyrometer's are ignored.

`pyrometer run --data` puts its records into the same inbox, which is read every second.
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
from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pyrometer.collect.otlp import requests
from pyrometer.collect.otlp.forms import OtlpError, OtlpTooLargeError
from pyrometer.collect.otlp.readers import OtlpBody
from pyrometer.serve.core import Core
from pyrometer.serve.disk import UNWRITTEN
from pyrometer.serve.http.guard import BODY_S, RETRY_S, body_of
from pyrometer.serve.ingest.spooled_bodies import storing
from pyrometer.serve.ingest.step_store import SENT, StepStore, signal_of, suffix_of, was_sent
from pyrometer.serve.runtime import run_to_end
from pyrometer.store.inbox import of_training

MAX_REQUESTS, MAX_REQUEST_BYTES = 256, 256 * 2**20  # that are being received; one machine sends a few kB
MAX_WAITING = 200_000  # messages: 8,000 ranks for four minutes, 200 MB
MAX_WAITING_BYTES = 512 * 2**20  # of bodies: stacks of 64 kB may compress to almost nothing
STORE_EVERY_S = 1.0

JSON, PROTOBUF = "application/json", "application/x-protobuf"
# The response to a signal, and its field for the number of rejected records.
_ANSWERS: dict[str, tuple[Any, str]] = {
    "logs": (ExportLogsServiceResponse, "rejected_log_records"),
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
}

_log = logging.getLogger("pyrometer")


class _PendingBody(NamedTuple):
    """A body as it was sent, and the future of its result."""

    signal: str
    body: bytes
    is_json: bool
    packed: bool
    received: asyncio.Future[OtlpBody]


class OtlpReceiver:
    """Receives records, and stores them while `storing` is active."""

    def __init__(self, core: Core) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  # records by signal and outcome
        self._core = core
        self._inbox = of_training(core.store.folder)
        self._steps = StepStore(
            core.store, self._inbox, node_uid_of=core.nodes.uid_of, waits_for_pods=core.nodes.are_followed
        )
        self._unread: list[_PendingBody] = []
        self._reading: asyncio.Task[None] | None = None
        self._receiving = self._receiving_bytes = 0
        self._arrived: list[tuple[Path, OtlpBody]] = []
        self._waiting = self._waiting_bytes = 0

    def route(self, signal: str) -> Callable[[Request], Awaitable[Response]]:
        """The route of a signal. After 200 the usable records of the body will be stored, even after a crash."""

        async def receive(request: Request) -> Response:
            return await self._receive(signal, request)

        return receive

    async def _receive(self, signal: str, request: Request) -> Response:
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        unsupported = _unsupported(request.headers, kind)
        if unsupported:
            return _refusal(kind, 415, unsupported)
        size = _announced(request.headers)
        crowded = self._receiving >= MAX_REQUESTS or self._receiving_bytes + size > MAX_REQUEST_BYTES
        if crowded or self._waiting >= MAX_WAITING or self._waiting_bytes >= MAX_WAITING_BYTES:
            return _refusal(kind, 503, f"More is waiting to be stored than should. Try again in {RETRY_S} s.")
        self._receiving, self._receiving_bytes = self._receiving + 1, self._receiving_bytes + size
        try:
            body = await body_of(request, requests.MAX_PACKED_BYTES)
            packed = request.headers.get("Content-Encoding", "").strip().lower() == "gzip"
            received = await self._read(signal, body, is_json=kind == JSON, packed=packed)
        except OtlpTooLargeError as error:
            return _refusal(kind, 413, str(error))
        except OtlpError as error:
            return _refusal(kind, 400, str(error))
        except (TimeoutError, ClientDisconnect):
            return _refusal(kind, 408, f"The body did not arrive within {BODY_S:g} s.")
        except OSError as error:
            self._core.disk.failed(UNWRITTEN, error)
            return _refusal(kind, 503, "The server cannot write to its disk. Try again later.")
        finally:
            self._receiving, self._receiving_bytes = self._receiving - 1, self._receiving_bytes - size
        self._core.disk.worked(UNWRITTEN)
        self._count(signal, received)
        return _answer(kind, signal, received.refused)

    async def _read(self, signal: str, body: bytes, *, is_json: bool, packed: bool) -> OtlpBody:
        """Reads a body and writes it to disk. Those that arrive in the meantime are next, together: a disk takes
        as long for many as for one."""
        sent = _PendingBody(signal, body, is_json, packed, asyncio.get_running_loop().create_future())
        self._unread.append(sent)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_all())
        return await sent.received

    async def _read_all(self) -> None:
        while self._unread:
            sent, self._unread = self._unread, []
            path, found = await asyncio.to_thread(self._read_together, sent)
            for one, received in zip(sent, found, strict=True):
                if isinstance(received, OtlpBody) and received.size and path is not None:
                    self._arrived.append((path, received))
                    self._waiting += received.size
                    self._waiting_bytes += received.body_bytes
                if one.received.done():  # the sender has disconnected
                    continue
                if isinstance(received, OtlpBody):
                    one.received.set_result(received)
                else:
                    one.received.set_exception(received)

    def _read_together(self, sent: list[_PendingBody]) -> tuple[Path | None, list[OtlpBody | Exception]]:
        """The records of each body or its error, and the file in which the bodies with records are."""
        found: list[OtlpBody | Exception] = []
        kept: list[tuple[str, bytes]] = []
        now_ms = time.time_ns() // 1_000_000
        for signal, body, is_json, packed, _ in sent:
            try:
                unpacked = requests.unpack(body, "gzip" if packed else "")
                received = requests.read(signal, unpacked, is_json=is_json, now_ms=now_ms)
            except Exception as error:  # returned to its sender only
                found.append(error)
                continue
            found.append(received)
            if received.size:
                kept.append((suffix_of(signal, is_json=is_json, packed=packed), body))
        try:
            return self._keep(kept), found
        except OSError as error:
            return None, [error if isinstance(one, OtlpBody) and one.size else one for one in found]

    def _keep(self, bodies: list[tuple[str, bytes]]) -> Path | None:
        if len(bodies) > 1:
            return self._inbox.put_together(bodies, f".{SENT}")
        return self._inbox.put(bodies[0][1], bodies[0][0]) if bodies else None

    def _count(self, signal: str, received: OtlpBody) -> None:
        self.counts[signal, "taken"] += received.size
        for reason, count in (received.left_out + received.refused).items():
            self.counts[signal, reason] += count

    # -- storing ------------------------------------------------------------------------------------------------------

    @property
    def stored(self) -> int:
        """How many records were stored."""
        return self._steps.stored

    @asynccontextmanager
    async def storing(self) -> AsyncIterator[None]:
        """Stores bodies regularly, those from before a crash first, and at the end everything."""
        await asyncio.to_thread(self._look, everything=True)
        async with storing(lambda last: self.store(everything=last), STORE_EVERY_S, "OTLP", self._core.disk):
            yield

    async def store(self, *, everything: bool = False) -> None:
        """Stores what has arrived. What cannot be stored now stays in memory and on disk."""
        async with self._core.lock:
            await run_to_end(self._look)
            arrived, self._arrived = self._arrived, []
            for path, received in arrived:
                self._steps.add(path, received)
            try:
                await run_to_end(self._steps.store, everything=everything)
            finally:
                self._waiting = self._steps.waiting + sum(received.size for _, received in self._arrived)
                since = sum(received.body_bytes for _, received in self._arrived)
                self._waiting_bytes = self._steps.waiting_bytes + since

    def _look(self, *, everything: bool = False) -> None:
        """Reads bodies that a process on this machine, or a server before it crashed, left in the folder."""
        known = self._steps.paths
        for path in self._inbox.paths():
            if path not in known and (everything or not was_sent(path)):
                for name, received in self._steps.read(path):
                    self._count(signal_of(name), received)


def _announced(headers: Mapping[str, str]) -> int:
    """The largest size that a body may have."""
    length = headers.get("Content-Length", "")
    return min(int(length), requests.MAX_PACKED_BYTES) if length.isdecimal() else requests.MAX_PACKED_BYTES


def _unsupported(headers: Mapping[str, str], kind: str) -> str | None:
    """Why the format of a body is not supported, if it is not."""
    packing = headers.get("Content-Encoding", "").strip().lower()
    if packing not in ("", "identity", "gzip"):
        return f"Content-Encoding {packing!r} is neither gzip nor identity."
    if kind not in (JSON, PROTOBUF):
        return f"Content-Type {kind!r} is neither {PROTOBUF} nor {JSON}."
    return None


def _answer(kind: str, signal: str, refused: Counter[str]) -> Response:
    """The response in the format of the request. Rejected records are its partial success."""
    response, rejected = _ANSWERS[signal]
    count, words = refused.total(), ", ".join(f"{reason}: {count}" for reason, count in sorted(refused.items()))
    if kind == PROTOBUF:
        partial = {"partial_success": {rejected: count, "error_message": words}} if count else {}
        return Response(response(**partial).SerializeToString(), media_type=PROTOBUF)
    first, *others = rejected.split("_")
    named = first + "".join(map(str.capitalize, others))
    fields = {"partialSuccess": {named: str(count), "errorMessage": words}} if count else {}
    return Response(json.dumps(fields), media_type=JSON)


def _refusal(kind: str, status: int, text: str) -> Response:
    """A google.rpc.Status with a text, in the format of the request."""
    headers = {"Retry-After": str(RETRY_S)} if status == 503 else None
    if kind == PROTOBUF:
        message = text.encode()
        length = (
            bytes([len(message)]) if len(message) < 0x80 else bytes([len(message) & 0x7F | 0x80, len(message) >> 7])
        )
        return Response(b"\x12" + length + message, status, headers, media_type=PROTOBUF)
    return Response(json.dumps({"message": text}), status, headers, media_type=JSON)
