"""POST /api/v1/write: receives what a Prometheus scraped from GPU exporters.

A body that was acknowledged is on disk (`store/journal.py`). Its values wait for the rest of their scrapes and are
stored together some seconds later. When too much is waiting, the answer is 503, after which every sender tries again.
After 429 a Prometheus drops the samples, unless it is configured otherwise (`retry_on_http_429`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from pyrometer.collect.gpu.dcgm import Dcgm
from pyrometer.collect.gpu.samples import Values
from pyrometer.collect.gpu.whole_scrapes import SETTLE_S, WholeScrapes
from pyrometer.collect.prometheus.remote_write import (
    MAX_PACKED_BYTES,
    RemoteWriteBody,
    RemoteWriteError,
    RemoteWriteReader,
    RemoteWriteTooLargeError,
)
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.serve.core import Core
from pyrometer.serve.disk import UNWRITTEN
from pyrometer.serve.http.guard import BODY_S, RETRY_S, body_of
from pyrometer.serve.ingest.spooled_bodies import append_tables_that_fit, storing
from pyrometer.serve.runtime import run_to_end
from pyrometer.store import tables_of
from pyrometer.store.journal import Journal
from pyrometer.store.reader import newest_slots

if TYPE_CHECKING:
    import pyarrow as pa

MAX_REQUESTS = 16  # whose bodies are being read
MAX_WAITING = 4_000_000  # values, 160 MB: twice what 100,000 GPUs send within SETTLE_S, 20 metrics every 15 s
STORE_EVERY_S = 1.0
ALL = float("inf")

_log = logging.getLogger("pyrometer")


class RemoteWriteReceiver:
    """Receives samples, and stores them while `storing` is active."""

    def __init__(self, core: Core) -> None:
        self.counts: Counter[str] = Counter()  # samples by outcome
        self._core = core
        self._journal = Journal(core.store.folder / "inbox")
        self._reader = RemoteWriteReader()
        self._reading = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "remote-write")  # always the same thread, so that its memory is reused
        self._inside = 0
        self._scrapes = WholeScrapes()
        self._files: dict[Path, float] = {}  # of bodies, and when the last body in them arrived
        self._done: list[Path] = []  # files whose values are about to be stored
        self._dcgm: Dcgm | None = None  # created when the store can be read
        self._unconverted: list[Values] = []  # complete scrapes that are not records yet
        self._unstored: dict[str, pa.Table] | None = None  # records that are not in the store yet

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def receive(self, request: Request) -> Response:
        """The route. After 204 the usable samples of the body will be stored, even after a crash."""
        unsupported = _unsupported(request.headers)
        if unsupported:
            return _refusal(415, unsupported)
        waiting = self._scrapes.waiting + sum(map(len, self._unconverted))
        if self._inside >= MAX_REQUESTS or waiting >= MAX_WAITING:
            return _refusal(503, f"More is waiting to be stored than should. Try again in {RETRY_S} s.", retry=True)
        self._inside += 1
        try:
            body = await body_of(request, MAX_PACKED_BYTES)
            async with self._reading:
                received = await asyncio.get_running_loop().run_in_executor(self._thread, self._read, body)
        except RemoteWriteTooLargeError as error:
            return _refusal(413, str(error))
        except RemoteWriteError as error:
            return _refusal(400, str(error))
        except (TimeoutError, ClientDisconnect):
            return _refusal(408, f"The body did not arrive within {BODY_S:g} s.")
        except OSError as error:
            self._core.disk.failed(UNWRITTEN, error)
            return _refusal(503, "The server cannot write to its disk. Try again later.", retry=True)
        finally:
            self._inside -= 1
        self._core.disk.worked(UNWRITTEN)
        self.counts.update(received.left_out)
        self.counts["taken"] += len(received.samples)
        return Response(status_code=204)

    def _read(self, body: bytes) -> RemoteWriteBody:
        """Reads a body, and writes it to disk if it has samples."""
        received = self._reader.read(body, time.time_ns() // 1_000_000)
        if len(received.samples):
            self._await_rest(received.samples, self._journal.put(body))
        return received

    def _await_rest(self, samples: Values, path: Path) -> None:
        arrived_s = time.monotonic()
        self._scrapes.add(samples, arrived_s)
        self._files[path] = arrived_s

    # -- storing ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def storing(self) -> AsyncIterator[None]:
        """Stores complete scrapes regularly, bodies from before a crash first, and at the end everything."""
        await asyncio.to_thread(self._read_left)
        async with storing(self._store_settled, STORE_EVERY_S, "remote write", self._core.disk):
            yield

    def _read_left(self) -> None:
        for path, bodies in self._journal.left_bodies():
            try:
                read = [self._reader.read(body, time.time_ns() // 1_000_000).samples for body in bodies]
            except RemoteWriteError as error:
                _log.warning("%s cannot be read and is moved aside: %s", path, error)
                self._journal.refuse(path)
            else:
                self._await_rest(Values.joined(read), path)

    async def _store_settled(self, last: bool) -> None:
        await self.store(ALL if last else time.monotonic() - SETTLE_S)

    async def store(self, before_s: float) -> None:
        """Stores what arrived before a time. What cannot be stored now stays in memory and on disk."""
        async with self._core.lock:
            async with self._reading:  # so that no body is half read
                await run_to_end(self._take, before_s)
            await run_to_end(self._store)

    def _take(self, before_s: float) -> None:
        """Moves values and their files on together, in the thread, so that cancellation loses neither."""
        self._unconverted += self._scrapes.take(before_s)
        self._journal.turn()
        self._done += [path for path, arrived_s in self._files.items() if arrived_s < before_s]
        self._files = {path: arrived_s for path, arrived_s in self._files.items() if arrived_s >= before_s}

    def _store(self) -> None:
        store = self._core.store
        if self._dcgm is None:
            self._dcgm = Dcgm(self._core.nodes.uid_of, near_idle_power_w, newest_slots(store))
        while self._unconverted or self._unstored:
            if self._unstored is None:
                table, records = self._dcgm.take_table(self._unconverted[0])
                self._unstored = {"gpu_sample": table} | tables_of(records)
                del self._unconverted[0]
            append_tables_that_fit(store, self._unstored)
            self._unstored = None
        self._journal.drop(self._done)
        self._done = []


def _unsupported(headers: Mapping[str, str]) -> str | None:
    """Why the protocol of a body is not supported, if it is not."""
    packing, version = headers.get("Content-Encoding", ""), headers.get("X-Prometheus-Remote-Write-Version", "0.1.0")
    kind, _, parameters = headers.get("Content-Type", "").partition(";")
    proto = parameters.partition("proto=")[2].strip(' "')
    if packing.lower() != "snappy":
        return f"Content-Encoding {packing!r} is not snappy."
    if kind.strip().lower() != "application/x-protobuf":
        return f"Content-Type {kind!r} is not application/x-protobuf."
    if proto not in ("", "prometheus.WriteRequest") or not version.startswith(("0.", "1.")):
        return f"Remote write {version} {proto}".rstrip() + " is not supported. Send 1.0 (prometheus.WriteRequest)."
    return None


def _refusal(status: int, text: str, *, retry: bool = False) -> Response:
    return JSONResponse({"error": text}, status, headers={"Retry-After": str(RETRY_S)} if retry else None)
