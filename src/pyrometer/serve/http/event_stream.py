"""Server-sent events for pages that stay open. A slow reader misses old events and delays no other client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

MAX_LISTENERS = 200
MAX_UNREAD = 64  # events of one listener; older ones are dropped
KEEPALIVE_S = 15.0  # proxies close silent connections


class EventStream:
    """All listeners, and the newest event of each lasting kind for listeners that connect later."""

    def __init__(self) -> None:
        self._listeners: dict[asyncio.Queue[str | None], str | None] = {}  # with the team whose events they may see
        self._newest: dict[str, str] = {}
        self._ended = False

    def is_full(self) -> bool:
        """Whether there are as many listeners as allowed."""
        return len(self._listeners) >= MAX_LISTENERS

    def teams(self) -> list[str]:
        """The teams whose viewers listen."""
        return sorted({team for team in self._listeners.values() if team is not None})

    def send(self, kind: str, news: dict[str, Any], *, lasting: bool = False) -> None:
        """Sends an event to all listeners. A lasting one is also sent to listeners that connect later."""
        text = _event(kind, news)
        if lasting:
            if self._newest.get(kind) == text:
                return
            self._newest[kind] = text
        for queue in self._listeners:
            _put(queue, text)

    def send_to_team(self, team: str | None, kind: str, news: dict[str, Any]) -> None:
        """Sends an event to the viewers of a team. None: viewers of all teams."""
        for queue, of in self._listeners.items():
            if of == team:
                _put(queue, _event(kind, news))

    def end(self) -> None:
        """Ends all streams, so that the server can stop."""
        self._ended = True
        for queue in self._listeners:
            _put(queue, None)

    async def events(self, team: str | None = None) -> AsyncGenerator[str, None]:
        """The lasting events, then events as they happen. A team's viewer gets those of the team."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(MAX_UNREAD)
        self._listeners[queue] = team
        try:
            yield f"retry: 2000\n\n{''.join(self._newest.values())}"
            while not (self._ended and queue.empty()):
                try:
                    text = await asyncio.wait_for(queue.get(), KEEPALIVE_S)
                except TimeoutError:
                    text = ": still here\n\n"
                if text is None:
                    return
                yield text
        finally:
            del self._listeners[queue]


def _event(kind: str, news: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(news, allow_nan=False)}\n\n"


def _put(queue: asyncio.Queue[str | None], text: str | None) -> None:
    """Adds to the unread events. The oldest one is dropped."""
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(text)
