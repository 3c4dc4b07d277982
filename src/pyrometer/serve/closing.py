"""Closing and rebuilding a month over HTTP, for admins."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyrometer.account.closing import ClosingError, close, json_of
from pyrometer.account.rebuilding import rebuild_month
from pyrometer.account.time_range import TimeRangeError, zone_of
from pyrometer.serve.access import RefusedError
from pyrometer.serve.threads import to_its_end

if TYPE_CHECKING:
    from pyrometer.serve.app import Server


class Closing:
    """Closes and rebuilds months of a server's store."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def take(self, request: Request) -> Response:
        """Closes a month for good."""
        return await self._run(request, self._close)

    async def rebuild(self, request: Request) -> Response:
        """Rebuilds the ledger of a month under today's rules."""
        return await self._run(request, self._rebuild)

    async def _run(self, request: Request, work: Callable[[str, tzinfo, str], dict[str, Any]]) -> Response:
        parameters = dict(request.query_params)
        if set(parameters) - {"month", "tz"} or "month" not in parameters:
            raise RefusedError(400, "Say month=2026-10, and tz=ZONE where it is not the server's; nothing else.")
        try:
            zone = zone_of(parameters.get("tz") or self._server.settings.timezone)
            async with self._server.lock:
                answer = await to_its_end(work, parameters["month"], zone, request.state.who.name)
        except TimeRangeError as error:
            raise RefusedError(400, str(error)) from None
        except ClosingError as error:
            raise RefusedError(409, str(error)) from None
        return JSONResponse(answer)

    def _close(self, month: str, zone: tzinfo, by: str) -> dict[str, Any]:
        server = self._server
        server.account(may_rest=False)
        now_ms = time.time_ns() // 1_000_000
        return json_of(close(server.store, server.settings, month, zone, now_ms=now_ms, by=by))

    def _rebuild(self, month: str, zone: tzinfo, by: str) -> dict[str, Any]:
        server = self._server
        return rebuild_month(server.store, month, zone, lambda: server.account(may_rest=False))
