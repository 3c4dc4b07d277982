"""Engines that map a function over pieces of work: this process, or a Ray cluster. Results and their order are
equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from pyrometer.store.errors import StoreError

Work = TypeVar("Work")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]

LOCAL, RAY = ENGINES = ("local", "ray")


class EngineError(StoreError):
    """An engine that cannot be used. The text names it and the fix."""


class Engine(Protocol):
    """Calls `function(about, work)` for each pair. `about` may be large, and is often the same."""

    splits: bool  # whether a long time range should be cut into pieces

    def map(
        self, function: Callable[[Any, Work], Result], work: Sequence[tuple[Any, Work]], progress: Progress
    ) -> list[Result]:
        """The results, in the order of the work."""
        ...


class Local:
    """This process, one piece at a time: DuckDB uses all cores for each."""

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
    """The engine with a name. Ray is connected to the cluster at an address."""
    if name == LOCAL:
        return Local()
    from pyrometer.store.engines.ray import Ray

    return Ray(address or "auto")
