"""A few values as one line of blocks."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], *, low: float | None = None, high: float | None = None) -> str:
    """One block a value, between the least and the most of them unless told otherwise; what is not there is a gap."""
    known = [value for value in values if value is not None]
    low = min(known, default=0.0) if low is None else low
    high = max(known, default=0.0) if high is None else high
    span = (high - low) or 1.0
    return "".join(" " if v is None else BLOCKS[min(7, max(0, int(8 * (v - low) / span)))] for v in values)
