"""The seam for everything that brings facts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple, Protocol

from pyrometer.store import Store

MOST_WORDS = 500  # characters of what others say: some repeat the value that they do not like


class Delivery(NamedTuple):
    """Records that belong together: they are stored in one transaction, or not at all."""

    records: Sequence[tuple[Any, ...]]
    progress: float = 0.0  # how much of a finite source has been read, 0 to 1
    covers: tuple[int, int] | None = None  # the time, from and to, that is known once this is stored


class Source(Protocol):
    """Anything that brings facts: an endless watch, or a file that is read once."""

    def deliveries(self) -> AsyncIterator[Delivery]:
        """The facts, in the order in which they are to be stored."""
        ...


class SourceError(Exception):
    """A source that cannot be read; the text names the thing, the value and the way out."""


def words(error: BaseException) -> str:
    """What an error of a library says, on one line that has an end; its name when it says nothing."""
    return " ".join(str(error)[:MOST_WORDS].split()) or type(error).__name__


async def drain(source: Source, store: Store, *, producer: str = "") -> AsyncIterator[Delivery]:
    """Stores what a source brings; yields each delivery once it is safe."""
    sequence = 0
    async for delivery in source.deliveries():
        store.append(delivery.records, producer=producer, sequence=sequence)
        sequence += 1
        yield delivery
