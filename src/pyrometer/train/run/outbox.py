"""Messages of a rank that wait to be written to the spool."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from pyrometer.train.ship.spool import Message

MAX_MESSAGES = 10_000


class Outbox:
    """Collects messages from all threads. `urgent` is set when they should not wait for the next turn."""

    def __init__(self) -> None:
        self.messages: deque[Message] = deque(maxlen=MAX_MESSAGES)
        self.urgent = threading.Event()

    def event(self, kind: str, *, at_ms: int | None = None, urgent: bool = False, **fields: Any) -> None:
        """Adds an event. Fields with the value None are omitted."""
        known = {name: value for name, value in fields.items() if value is not None}
        self.messages.append(("event", {"time_ms": at_ms or time.time_ns() // 1_000_000, "kind": kind, **known}))
        if urgent:
            self.urgent.set()

    def run(self, *, urgent: bool = False, **fields: Any) -> None:
        """Adds news about this rank."""
        self.messages.append(("run", {"time_ms": time.time_ns() // 1_000_000, **fields}))
        if urgent:
            self.urgent.set()

    def take(self) -> list[Message]:
        """Removes and returns all messages, the oldest first."""
        messages: list[Message] = []
        while self.messages:
            messages.append(self.messages.popleft())
        return messages
