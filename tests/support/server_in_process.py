"""A server in the process of the test, and its client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx2 as httpx

from pyrometer.model.settings import Settings
from pyrometer.serve.core import Core, Nodes
from pyrometer.serve.main import Services, build_services
from pyrometer.store import Store


@asynccontextmanager
async def server_and_client(
    store: Store, *, crash: bool = False, uid_of: Callable[[str], str | None] = lambda name: None
) -> AsyncIterator[tuple[Services, httpx.AsyncClient]]:
    """A server and its client. One that crashes stores nothing that it received."""
    server = build_services(Core(store, Settings(), nodes=Nodes(uid_of)), open_to_all=True)
    app = server.application()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        if crash:
            yield server, client
        else:
            async with app.router.lifespan_context(app):
                yield server, client
