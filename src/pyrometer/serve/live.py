"""What is live: server-sent events for pages that stay open. A slow reader loses old news, and slows nobody down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

MOST_LISTENING = 200
MOST_UNREAD = 64  # events; older ones are dropped
STILL_HERE_S = 15.0  # proxies hang up on silence


class Live:
    """Everybody who listens, and the newest event of each kind for those who come later."""

    def __init__(self) -> None:
        self._listening: dict[asyncio.Queue[str | None], str | None] = {}  # with the team that they may hear of
        self._newest: dict[str, str] = {}
        self._ended = False

    def is_full(self) -> bool:
        """Whether nobody else may listen."""
        return len(self._listening) >= MOST_LISTENING

    def teams(self) -> list[str]:
        """The teams whose viewers listen."""
        return sorted({team for team in self._listening.values() if team is not None})

    def tell(self, kind: str, news: dict[str, Any], *, lasting: bool = False) -> None:
        """Something happened that is nobody's secret; what lasts is also told to those who come later."""
        text = _event(kind, news)
        if lasting:
            if self._newest.get(kind) == text:
                return
            self._newest[kind] = text
        for queue in self._listening:
            _put(queue, text)

    def tell_those_of(self, team: str | None, kind: str, news: dict[str, Any]) -> None:
        """Something happened that a team's viewers may know; None: those who may know everything."""
        for queue, of in self._listening.items():
            if of == team:
                _put(queue, _event(kind, news))

    def end(self) -> None:
        """There is no more to come: streams end, so that the server can."""
        self._ended = True
        for queue in self._listening:
            _put(queue, None)

    async def events(self, team: str | None = None) -> AsyncGenerator[str, None]:
        """What happens from now on, as it is sent, after how things stand; to a team's viewer, what is of that team."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(MOST_UNREAD)
        self._listening[queue] = team
        try:
            yield f"retry: 2000\n\n{''.join(self._newest.values())}"
            while not (self._ended and queue.empty()):
                try:
                    text = await asyncio.wait_for(queue.get(), STILL_HERE_S)
                except TimeoutError:
                    text = ": still here\n\n"
                if text is None:
                    return
                yield text
        finally:
            del self._listening[queue]


def _event(kind: str, news: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(news, allow_nan=False)}\n\n"


def _put(queue: asyncio.Queue[str | None], text: str | None) -> None:
    """To the end of what is unread; the oldest gives way."""
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(text)
