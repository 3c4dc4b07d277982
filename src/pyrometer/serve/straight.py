"""Senders' way in: past everything that only answers to people need, which would take a fifth of their CPU."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send


class Straight:
    """Calls what some routes POST to, without looking at others or packing answers; all else goes to the
    application."""

    def __init__(self, app: ASGIApp, routes: Iterable[Route]) -> None:
        self._app = app
        self._routes = {route.path: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        route = self._routes.get(scope["path"]) if scope.get("method") == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope.update(route=route, path_params={})
        try:
            response = await route.endpoint(Request(scope, receive, send))
        except Exception:
            await PlainTextResponse("Internal Server Error", 500)(scope, receive, send)
            raise  # to the log
        await response(scope, receive, send)
