"""The interface of every source of records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple, Protocol

from pyrometer.store import Store

MAX_ERROR_CHARS = 500  # of a library's error, which may quote the whole value


class Delivery(NamedTuple):
    """Records that belong together: they are stored in one transaction, or not at all."""

    records: Sequence[tuple[Any, ...]]
    progress: float = 0.0  # how much of a finite source has been read, 0 to 1
    covers: tuple[int, int] | None = None  # start and end of the time range that is complete once this is stored


class Source(Protocol):
    """Delivers records: from an endless watch, or from a file that is read once."""

    def deliveries(self) -> AsyncIterator[Delivery]:
        """Yields records in the order in which they are stored."""
        ...


class SourceError(Exception):
    """A source that cannot be read. The message names the object, the value and a remedy."""


def error_text(error: BaseException) -> str:
    """Returns an error's message as one short line, or the name of its class if it has no message."""
    return " ".join(str(error)[:MAX_ERROR_CHARS].split()) or type(error).__name__


async def drain(source: Source, store: Store, *, producer: str = "") -> AsyncIterator[Delivery]:
    """Stores the deliveries of a source and yields each one after it is stored."""
    sequence = 0
    async for delivery in source.deliveries():
        store.append(delivery.records, producer=producer, sequence=sequence)
        sequence += 1
        yield delivery
