"""Closing a month over HTTP, for admins."""

from __future__ import annotations

import time
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyrometer.account.closing import ClosingError, close, json_of
from pyrometer.account.windows import WindowError, zone_of
from pyrometer.serve.access import RefusedError
from pyrometer.serve.threads import to_its_end

if TYPE_CHECKING:
    from pyrometer.serve.app import Server


class Closing:
    """Closes months of a server's store."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def take(self, request: Request) -> Response:
        """Closes a month for good."""
        told = dict(request.query_params)
        if set(told) - {"month", "tz"} or "month" not in told:
            raise RefusedError(400, "Say month=2026-10, and tz=ZONE where it is not the server's; nothing else.")
        try:
            zone = zone_of(told.get("tz") or self._server.settings.timezone)
            async with self._server.lock:
                closed = await to_its_end(self._close, told["month"], zone, request.state.who.name)
        except WindowError as error:
            raise RefusedError(400, str(error)) from None
        except ClosingError as error:
            raise RefusedError(409, str(error)) from None
        return JSONResponse(closed)

    def _close(self, month: str, zone: tzinfo, by: str) -> dict[str, Any]:
        server = self._server
        server.account(may_rest=False)
        now_ms = time.time_ns() // 1_000_000
        return json_of(close(server.store, server.settings, month, zone, now_ms=now_ms, by=by))
