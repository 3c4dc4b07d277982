"""What was acknowledged is stored now and then, as long as a server runs; and once more at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pyrometer.serve.disk import OF_DISK, Disk
from pyrometer.store import Store, StoreError

if TYPE_CHECKING:
    import pyarrow as pa

MOST_FAILURES = 1_000  # of one batch: one bad record among a million costs twenty


_log = logging.getLogger("pyrometer")


@asynccontextmanager
async def storing(
    store: Callable[[bool], Awaitable[None]], every_s: float, who: str, disk: Disk
) -> AsyncIterator[None]:
    """Calls `store` every so many seconds, and with True at the end: then all of it. The log says what `who` did."""
    trouble = f"What {who} could not be stored, and is kept"
    stopped = asyncio.Event()

    async def keep() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await stopped.wait()
            last = stopped.is_set()
            try:
                await store(last)
                disk.worked(trouble)
            except OF_DISK as error:
                disk.failed(trouble, error)
            except Exception:
                _log.exception("What %s could not be stored; it is kept, and tried again", who)
            if last:
                return

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        stopped.set()
        await task


Batch = TypeVar("Batch")


def append_what_fits(store: Store, records: Sequence[tuple[Any, ...]]) -> None:
    """Stores records. Of a batch that is refused its halves are tried, and theirs: what would be refused for ever costs
    none of its neighbours, which came from others. What is left out is said once."""
    _append(store.append, records, len, lambda batch, at: (batch[:at], batch[at:]))


def append_tables_that_fit(store: Store, tables: Mapping[str, pa.Table]) -> None:
    """The same of tables by kind."""
    for kind, table in tables.items():

        def append(piece: pa.Table, kind: str = kind) -> None:
            store.append_tables({kind: piece})

        _append(append, table, lambda piece: piece.num_rows, lambda piece, at: (piece.slice(0, at), piece.slice(at)))


def _append(
    append: Callable[[Batch], object], batch: Batch, size_of: Callable[[Batch], int],
    cut: Callable[[Batch, int], tuple[Batch, Batch]],
) -> None:  # fmt: skip
    pieces, refused = [batch], ""
    failures = count = 0
    while pieces:
        piece = pieces.pop()
        size = size_of(piece)
        try:
            append(piece)
        except StoreError as error:
            refused, failures = str(error), failures + 1
            if size > 1 and failures < MOST_FAILURES:
                pieces += reversed(cut(piece, size // 2))
            else:
                count += size
    if count:
        _log.error("%d of %d records are left out: %s", count, size_of(batch), refused)
