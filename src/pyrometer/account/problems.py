"""What a check finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyrometer.store import Store
from pyrometer.store.catalog import Part


class Problem(NamedTuple):
    """What is wrong, in one sentence, and with which part. A broken part is mended in one way, whatever is wrong with
    it; `mend` is for what needs another: it mends, and says what it did."""

    text: str
    part: Part | None = None
    mend: Callable[[Store], str] | None = None
