"""How often something may be tried, and how much is remembered: both have an end."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

MOST_ADDRESSES = 10_000


class Recent(Generic[Key, Value]):
    """What came last, by key; the oldest gives way."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def __setitem__(self, key: Key, value: Value) -> None:
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def get(self, key: Key) -> Value | None:
        """What is kept, if it is."""
        return self._kept.get(key)

    def pop(self, key: Key) -> None:
        """Lets go of one, if it is there."""
        self._kept.pop(key, None)


class Bucket(NamedTuple):
    """So many at once, and then one every so often."""

    most: int
    every_s: float


OF_ONE = Bucket(10, 6.0)
OF_ALL = Bucket(60, 1.0)


class Guesses:
    """Wrong tokens, of one address and of all together."""

    def __init__(
        self, of_one: Bucket = OF_ONE, of_all: Bucket = OF_ALL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._of_one, self._of_all = of_one, of_all
        self._clock = clock
        # A bucket is known by the time at which it is full again.
        self._full_s: Recent[str, float] = Recent(MOST_ADDRESSES)
        self._all_full_s = 0.0

    def wait_s(self, address: str) -> float:
        """How long this address waits before its next guess is looked at; 0: not at all."""
        now_s = self._clock()
        full_s = self._full_s.get(address) or 0.0
        return max(_wait_s(self._of_one, full_s, now_s), _wait_s(self._of_all, self._all_full_s, now_s))

    def wrong(self, address: str) -> None:
        """It was none."""
        now_s = self._clock()
        self._full_s[address] = max(self._full_s.get(address) or 0.0, now_s) + self._of_one.every_s
        self._all_full_s = max(self._all_full_s, now_s) + self._of_all.every_s


def _wait_s(bucket: Bucket, full_s: float, now_s: float) -> float:
    return max(0.0, full_s - (bucket.most - 1) * bucket.every_s - now_s)
