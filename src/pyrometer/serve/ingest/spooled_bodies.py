"""Bodies that are acknowledged and still in the inbox of a data folder: storing them, finding unreadable ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pyrometer.account.checks.check_parts import Problem
from pyrometer.collect.prometheus.remote_write import RemoteWriteError, RemoteWriteReader
from pyrometer.serve.disk import DISK_ERRORS, Disk
from pyrometer.store import Store, StoreError
from pyrometer.store.catalog_rebuild import LOST, put_aside
from pyrometer.store.inbox import REFUSED, Inbox, of_training

if TYPE_CHECKING:
    import pyarrow as pa

MAX_FAILURES = 1_000  # of one batch: one bad record among a million costs twenty

Batch = TypeVar("Batch")

_log = logging.getLogger("pyrometer")


@asynccontextmanager
async def storing(
    store: Callable[[bool], Awaitable[None]], every_s: float, sender: str, disk: Disk
) -> AsyncIterator[None]:
    """Calls `store` every `every_s` seconds, and with True at the end: then everything is stored. `sender` names the
    source of the bodies in the log."""
    trouble = f"Data from {sender} cannot be stored and is kept"
    stopped = asyncio.Event()

    async def keep_storing() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await stopped.wait()
            last = stopped.is_set()
            try:
                await store(last)
                disk.worked(trouble)
            except DISK_ERRORS as error:
                disk.failed(trouble, error)
            except Exception:
                _log.exception("Data from %s could not be stored. It is kept and tried again", sender)
            if last:
                return

    task = asyncio.create_task(keep_storing())
    try:
        yield
    finally:
        stopped.set()
        await task


def append_what_fits(store: Store, records: Sequence[tuple[Any, ...]]) -> None:
    """Stores records. A batch that the store refuses is halved again and again, so that one bad record does not cost
    the records of other senders. Records that are left out are logged."""
    _append(store.append, records, len, lambda batch, at: (batch[:at], batch[at:]))


def append_tables_that_fit(store: Store, tables: Mapping[str, pa.Table]) -> None:
    """The same for tables by kind."""
    for kind, table in tables.items():

        def append(piece: pa.Table, kind: str = kind) -> None:
            store.append_tables({kind: piece})

        _append(append, table, lambda piece: piece.num_rows, lambda piece, at: (piece.slice(0, at), piece.slice(at)))


def _append(
    append: Callable[[Batch], object],
    batch: Batch,
    size_of: Callable[[Batch], int],
    cut: Callable[[Batch, int], tuple[Batch, Batch]],
) -> None:
    pieces, refused = [batch], ""
    failures = count = 0
    while pieces:
        piece = pieces.pop()
        size = size_of(piece)
        try:
            append(piece)
        except StoreError as error:
            refused, failures = str(error), failures + 1
            if size > 1 and failures < MAX_FAILURES:
                pieces += reversed(cut(piece, size // 2))
            else:
                count += size
    if count:
        _log.error("%d of %d records are left out: %s", count, size_of(batch), refused)


def unreadable_bodies(folder: Path) -> Iterator[Problem]:
    """Bodies of a Prometheus or a training process that cannot be read. To repair one is to move it aside."""
    for path in sorted(of_training(folder).folder.glob(f"*{REFUSED}")):
        shown = path.relative_to(folder)
        yield Problem(f"{shown} could not be read when it was to be stored.", mend=_move_aside(path))
    reader = RemoteWriteReader()
    for path, body in Inbox(folder / "inbox").left():
        try:
            reader.read(body, time.time_ns() // 1_000_000)
        except RemoteWriteError as error:
            text = f"{path.relative_to(folder)} cannot be read: {error}"
            yield Problem(text, mend=_move_aside(path))


def _move_aside(path: Path) -> Callable[[Store], str]:
    def mend(store: Store) -> str:
        put_aside(store.folder, path)
        return f"{path.relative_to(store.folder)} is now in {LOST}/."

    return mend
