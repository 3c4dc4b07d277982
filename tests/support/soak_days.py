"""A server in simulated days, as fast as possible. Its use of resources is measured at the end of each day.

One process and one event loop run the routes and tasks of the server on a clock that runs ahead: scrapes by remote
write and messages of ranks over OTLP, sealing, the ledger, retention, findings and questions.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2 as httpx

from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.serve.core import Core
from pyrometer.serve.ingest.remote_write_receiver import ALL
from pyrometer.serve.main import Services, build_services
from pyrometer.serve.tasks import accounting
from pyrometer.store import Store
from pyrometer.store.data_folder import DATABASE
from tests.support.fault_harness import Delivery, deliveries, objects

KEPT_DAYS = 3
QUESTIONS = ("why", "cost?by=team,state", "runs", "burn", "top")


class ResourceUse(NamedTuple):
    """The resources that a server uses after a number of days."""

    day: int
    rss_kib: int
    descriptors: int
    threads: int
    temporary_tables: int
    files: int
    database_kib: int
    wal_kib: int
    parts: int


@contextmanager
def clock_ahead() -> Iterator[dict[str, int]]:
    """Sets the clock of this process ahead by the milliseconds in the dict."""
    real_ns, real_s = time.time_ns, time.time
    ahead = {"ms": 0}
    time.time_ns = lambda: real_ns() + ahead["ms"] * 1_000_000
    time.time = lambda: real_s() + ahead["ms"] / 1000
    try:
        yield ahead
    finally:
        time.time_ns, time.time = real_ns, real_s


async def simulate_days(
    folder: Path, count: int, every_minutes: int = 10, kept_days: int = KEPT_DAYS, books_every_h: int = 4
) -> AsyncIterator[ResourceUse]:
    """Simulates `count` days and yields the use of resources after each.

    A server updates its ledger all the time, so a leak in one update is a leak in every update."""
    settings = Settings(retention_days=kept_days)
    accounting.REST_FACTOR = 0
    with clock_ahead() as ahead, Store(folder, create=True) as store:
        # Four GPUs fill the WAL in two weeks, which is when it goes into the database's file; thousands do in minutes.
        store.connection.execute("SET checkpoint_threshold = '512KB'")
        server = build_services(Core(store, settings), open_to_all=True)
        app = server.application()
        transport = httpx.ASGITransport(app)
        begun_ms = time.time_ns() // 1_000_000 // MS_PER_HOUR * MS_PER_HOUR
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
            app.router.lifespan_context(app),
        ):
            for hour in range(24 * count):
                start_ms = begun_ms + hour * MS_PER_HOUR
                ahead["ms"] = (hour + 1) * MS_PER_HOUR
                if hour % 24 == 0:
                    async with server.core.lock:
                        store.append(objects(24, start_ms))
                for one in deliveries(60, every_minutes, start_ms):
                    await _sent(client, one)
                if hour % books_every_h != books_every_h - 1:
                    continue
                await server.remote_write.store(ALL)
                await server.otlp.store(everything=True)
                server.accounting._seal_due_s = 0.0
                await server.accounting.update()
                if hour % 24 == 23:
                    await server.findings.look()
                    for question in QUESTIONS:
                        assert (await client.get(f"/api/v1/{question}")).status_code == 200
                    assert (await client.get("/metrics")).status_code == 200
                if hour % 24 == 23:
                    yield measure(server, folder, (hour + 1) // 24)


async def _sent(client: httpx.AsyncClient, one: Delivery) -> None:
    """Sends until accepted: files have the kernel's clock, so half-written ones may look old and are removed."""
    for _ in range(5):
        answer = await client.post(one.path, content=one.body, headers=one.headers)
        if answer.is_success:
            return
    raise AssertionError(answer.text)


def measure(server: Services, folder: Path, day: int) -> ResourceUse:
    """The resources in use now."""
    gc.collect()
    ask = server.core.store.connection.execute
    ((tables,),) = ask("SELECT count(*) FROM duckdb_tables() WHERE temporary").fetchall()
    status = Path("/proc/self/status").read_text()
    rss_kib = int(status.partition("VmRSS:")[2].split()[0])
    wal = folder / f"{DATABASE}.wal"
    return ResourceUse(
        day,
        rss_kib,
        len(list(Path("/proc/self/fd").iterdir())),
        threading.active_count(),
        tables,
        sum(1 for path in folder.rglob("*") if path.is_file()),
        (folder / DATABASE).stat().st_size // 1024,
        wal.stat().st_size // 1024 if wal.exists() else 0,
        len(server.core.store.parts()),
    )


def slope(values: list[float]) -> float:
    """Growth per day, by least squares."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    spread = sum((day - middle) ** 2 for day in range(len(values)))
    return sum((day - middle) * (value - mean) for day, value in enumerate(values)) / spread
