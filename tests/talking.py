"""A server inside of the test's own process, and its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2 as httpx

from pyrometer.model.settings import Settings
from pyrometer.serve.app import Server, application
from pyrometer.store import Store


@asynccontextmanager
async def talking(store: Store, *, crash: bool = False) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    """A server and its client. One that crashes stores nothing of what it has taken."""
    server = Server(store, Settings(), asyncio.Lock(), open_to_all=True)
    app = application(server)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        if crash:
            yield server, client
        else:
            async with app.router.lifespan_context(app):
                yield server, client
