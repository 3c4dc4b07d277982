"""What maps a function over pieces of work: this process, or a Ray cluster. Both give the same results in one order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from pyrometer.store.errors import StoreError

Work = TypeVar("Work")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]

LOCAL, RAY = ENGINES = ("local", "ray")


class EngineError(StoreError):
    """An engine that cannot be used as asked; the text says which, and the way out."""


class Engine(Protocol):
    """Calls `function(about, work)` for each pair. What work is about may be large, and is the same of many."""

    splits: bool  # whether a long window is worth cutting into pieces

    def map(
        self, function: Callable[[Any, Work], Result], work: Sequence[tuple[Any, Work]], progress: Progress
    ) -> list[Result]:
        """The results, in the order of the work."""
        ...


class Local:
    """This process, one piece after the other: DuckDB uses all cores for each."""

    splits = False

    def map(
        self, function: Callable[[Any, Work], Result], work: Sequence[tuple[Any, Work]], progress: Progress
    ) -> list[Result]:
        """The results, in the order of the work."""
        results = []
        for done, (about, piece) in enumerate(work):
            progress(done, len(work))
            results.append(function(about, piece))
        progress(len(work), len(work))
        return results


def engine_of(name: str, address: str | None) -> Engine:
    """The engine of a name; of Ray, connected to the cluster at an address."""
    if name == LOCAL:
        return Local()
    from pyrometer.store.engines.ray import Ray

    return Ray(address or "auto")
