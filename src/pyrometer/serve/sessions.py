"""/api/v1/session: signing in with a token, so that a page need not keep it, and out again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from pyrometer.serve.access import COOKIE, SESSION_S, Access, RefusedError, Who
from pyrometer.serve.audit import Audit
from pyrometer.serve.bodies import body_of

MOST_BYTES = 4_096
BODY_S = 2.0  # clients are not known yet, and a token fits into one packet
PATH = "/api/v1/session"


class Sessions:
    """Who a page is, and how it becomes somebody."""

    def __init__(self, access: Access, audit: Audit, ledger: Callable[[], dict[str, Any] | None]) -> None:
        self._access = access
        self._audit = audit
        self._ledger = ledger

    async def route(self, request: Request) -> Response:
        """Says who asks and how far the ledger reaches (GET), signs in (POST) or out (DELETE). The last two only from
        a page of this server."""
        try:
            if request.method == "POST":
                return await self._sign_in(request)
            if request.method == "DELETE":
                return self._sign_out(request)
            shown = {**_shown(self._access.who(request, "view")), "ledger": self._ledger()}
            return JSONResponse(shown, headers={"Cache-Control": "no-store"})
        except RefusedError as refused:
            what = {"POST": "sign_in", "DELETE": "sign_out"}.get(request.method, "refused")
            self._audit.refused(refused, self._access.address(request), PATH, what)
            return JSONResponse({"error": refused.text}, refused.status, headers=refused.headers)

    async def _sign_in(self, request: Request) -> Response:
        self._access.check_origin(request)
        who, session = self._access.sign_in(request, await _secret(request))
        self._audit.say(
            "sign_in", who=who.name, role=who.role, team=who.team, **{"from": self._access.address(request)}, status=200
        )
        response = JSONResponse(_shown(who), headers={"Cache-Control": "no-store"})
        if session is not None:
            response.set_cookie(
                COOKIE, session, max_age=SESSION_S, path="/", httponly=True, samesite="strict",
                secure=self._access.is_secure(request),
            )  # fmt: skip
        return response

    def _sign_out(self, request: Request) -> Response:
        self._access.check_origin(request)
        self._access.sign_out(request)
        self._audit.say("sign_out", **{"from": self._access.address(request)}, status=204)
        response = Response(status_code=204)
        response.delete_cookie(
            COOKIE, path="/", httponly=True, samesite="strict", secure=self._access.is_secure(request)
        )
        return response


async def _secret(request: Request) -> str:
    """The token in a body."""
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, 'Say it as application/json: {"token": "pyr_…"}.')
    try:
        body = await body_of(request, MOST_BYTES, BODY_S)
    except (TimeoutError, ClientDisconnect):
        raise RefusedError(408, f"The body did not arrive within {BODY_S:g} s. Try again.") from None
    if len(body) > MOST_BYTES:
        raise RefusedError(413, f"A token is shorter than {MOST_BYTES:,} bytes.")
    try:
        said: Any = json.loads(body)
        secret = said["token"]
    except (ValueError, RecursionError, KeyError, TypeError):
        secret = None
    if not isinstance(secret, str) or not secret:
        raise RefusedError(400, 'Say {"token": "pyr_…"}.')
    return secret.strip()


def _shown(who: Who) -> dict[str, str | None]:
    return {"name": who.name, "role": who.role, "team": who.team, "sign_in": who.sign_in}
