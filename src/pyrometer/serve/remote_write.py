"""POST /api/v1/write: takes what a Prometheus scraped of GPUs.

A body that was acknowledged is on disk (`store/journal.py`); its values wait for the rest of their scrapes and are
stored together some seconds later. When more waits than should, the answer is 503, after which every sender tries
again: after 429 a Prometheus throws the samples away, unless it is told otherwise (`retry_on_http_429`).
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

from pyrometer.collect.dcgm import Dcgm
from pyrometer.collect.remote_write import MOST_PACKED_BYTES, Reader, Received, RemoteWriteError, TooLargeError
from pyrometer.collect.values import Values
from pyrometer.collect.whole_scrapes import SETTLE_S, WholeScrapes
from pyrometer.identify.gpu_models import near_idle_power_w
from pyrometer.serve.bodies import BODY_S, RETRY_S, body_of
from pyrometer.serve.disk import UNWRITTEN
from pyrometer.serve.keeping import append_tables_that_fit, storing
from pyrometer.serve.threads import to_its_end
from pyrometer.store import tables_of
from pyrometer.store.journal import Journal
from pyrometer.store.reader import newest_slots

if TYPE_CHECKING:
    import pyarrow as pa

    from pyrometer.serve.app import Server

MOST_AT_ONCE = 16  # bodies that are being read
MOST_WAITING = 4_000_000  # values, 160 MB: twice what 100,000 GPUs say within SETTLE_S, 20 metrics every 15 s
STORE_EVERY_S = 1.0
ALL = float("inf")

_log = logging.getLogger("pyrometer")


class RemoteWrite:
    """What was sent, on its way to the store. It is stored as long as the server is `keeping` it."""

    def __init__(self, server: Server) -> None:
        self.counts: Counter[str] = Counter()  # samples by what became of them
        self._server = server
        self._journal = Journal(server.store.folder / "inbox")
        self._reader = Reader()
        self._reading = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "remote-write")  # always the same one: its memory stays with it
        self._inside = 0
        self._scrapes = WholeScrapes()
        self._files: dict[Path, float] = {}  # of bodies, and when the last one in them came
        self._done: list[Path] = []  # files of bodies whose values are on their way
        self._dcgm: Dcgm | None = None  # once it is known which slots there were
        self._untaken: list[Values] = []  # of scrapes that are whole, and not yet records
        self._unstored: dict[str, pa.Table] | None = None  # records that the store has not taken yet

    # -- in -----------------------------------------------------------------------------------------------------------

    async def take(self, request: Request) -> Response:
        """The route. 204: what can be used of the body will be in the store, whatever happens."""
        foreign = _foreign(request.headers)
        if foreign:
            return _refusal(415, foreign)
        waiting = self._scrapes.waiting + sum(map(len, self._untaken))
        if self._inside >= MOST_AT_ONCE or waiting >= MOST_WAITING:
            return _refusal(503, f"More is waiting to be stored than should: try again in {RETRY_S} s.", retry=True)
        self._inside += 1
        try:
            body = await body_of(request, MOST_PACKED_BYTES)
            async with self._reading:
                received = await asyncio.get_running_loop().run_in_executor(self._thread, self._read, body)
        except TooLargeError as error:
            return _refusal(413, str(error))
        except RemoteWriteError as error:
            return _refusal(400, str(error))
        except (TimeoutError, ClientDisconnect):
            return _refusal(408, f"The body did not come within {BODY_S:g} s.")
        except OSError as error:
            self._server.disk.failed(UNWRITTEN, error)
            return _refusal(503, "The disk of the server takes nothing: try again later.", retry=True)
        finally:
            self._inside -= 1
        self._server.disk.worked(UNWRITTEN)
        self.counts.update(received.left_out)
        self.counts["taken"] += len(received.samples)
        return Response(status_code=204)

    def _read(self, body: bytes) -> Received:
        """Reads a body and keeps it on disk, if there is anything in it."""
        received = self._reader.read(body, time.time_ns() // 1_000_000)
        if len(received.samples):
            self._await_rest(received.samples, self._journal.put(body))
        return received

    def _await_rest(self, samples: Values, path: Path) -> None:
        arrived_s = time.monotonic()
        self._scrapes.add(samples, arrived_s)
        self._files[path] = arrived_s

    # -- on to the store ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Stores what has come, beginning with what a crash left; at the end, all of it."""
        await asyncio.to_thread(self._read_left)
        async with storing(self._store_settled, STORE_EVERY_S, "Prometheus sent", self._server.disk):
            yield

    def _read_left(self) -> None:
        for path, bodies in self._journal.left_bodies():
            try:
                read = [self._reader.read(body, time.time_ns() // 1_000_000).samples for body in bodies]
            except RemoteWriteError as error:
                _log.warning("%s is put aside: %s", path, error)
                self._journal.refuse(path)
            else:
                self._await_rest(Values.joined(read), path)

    async def _store_settled(self, last: bool) -> None:
        await self.store(ALL if last else time.monotonic() - SETTLE_S)

    async def store(self, before_s: float) -> None:
        """Stores what came before a time. What cannot be stored now stays, on disk too."""
        async with self._server.lock:
            async with self._reading:  # no body is half in
                await to_its_end(self._take, before_s)
            await to_its_end(self._store)

    def _take(self, before_s: float) -> None:
        """Values and the files that they lie in go on together, in the thread: who is cancelled loses neither."""
        self._untaken += self._scrapes.take(before_s)
        self._journal.turn()
        self._done += [path for path, arrived_s in self._files.items() if arrived_s < before_s]
        self._files = {path: arrived_s for path, arrived_s in self._files.items() if arrived_s >= before_s}

    def _store(self) -> None:
        store = self._server.store
        if self._dcgm is None:
            self._dcgm = Dcgm(lambda host: self._server.node_uid_of(host), near_idle_power_w, newest_slots(store))
        while self._untaken or self._unstored:
            if self._unstored is None:
                table, records = self._dcgm.take_table(self._untaken[0])
                self._unstored = {"gpu_sample": table} | tables_of(records)
                del self._untaken[0]
            append_tables_that_fit(store, self._unstored)
            self._unstored = None
        self._journal.drop(self._done)
        self._done = []


def _foreign(headers: Mapping[str, str]) -> str | None:
    """Why a body is of another protocol than ours."""
    packing, version = headers.get("Content-Encoding", ""), headers.get("X-Prometheus-Remote-Write-Version", "0.1.0")
    kind, _, parameters = headers.get("Content-Type", "").partition(";")
    proto = parameters.partition("proto=")[2].strip(' "')
    if packing.lower() != "snappy":
        return f"Content-Encoding {packing!r} is not snappy."
    if kind.strip().lower() != "application/x-protobuf":
        return f"Content-Type {kind!r} is not application/x-protobuf."
    if proto not in ("", "prometheus.WriteRequest") or not version.startswith(("0.", "1.")):
        return f"Remote write {version} {proto}".rstrip() + " is not understood: send 1.0 (prometheus.WriteRequest)."
    return None


def _refusal(status: int, text: str, *, retry: bool = False) -> Response:
    return JSONResponse({"error": text}, status, headers={"Retry-After": str(RETRY_S)} if retry else None)
