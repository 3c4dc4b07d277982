"""The HTTP side of a server: is it well, the page, and the answers as JSON. It asks the store, and changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from pyrometer.account.ledger import build
from pyrometer.account.sums import GROUPINGS, cost, open_names
from pyrometer.account.windows import WindowError, window_of, zone_of
from pyrometer.explain.html import render_html
from pyrometer.explain.why import why
from pyrometer.identify.prices import read_price_book
from pyrometer.model.settings import Settings
from pyrometer.serve.collector import Collector
from pyrometer.serve.report import HOSTS, POLICY
from pyrometer.serve.tokens import Tokens
from pyrometer.store import Store

Answer = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]
_WINDOW = ("last", "since", "until", "month", "tz")


class Server:
    """What the routes share. The lock is held while the store is used."""

    def __init__(self, store: Store, settings: Settings, lock: asyncio.Lock, *, open_to_all: bool) -> None:
        self.store = store
        self.settings = settings
        self.lock = lock
        self.collector: Collector | None = None
        self.tokens = Tokens(store.folder)
        self.open_to_all = open_to_all  # on loopback, as long as nobody has made a token
        self.started_ms = time.time_ns() // 1_000_000

    # -- is it well -------------------------------------------------------------------------------------------------

    async def healthz(self, request: Request) -> Response:
        """The process answers."""
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """Everything that was there at the start has been seen, and what may not be read is known."""
        missing = self._not_ready()
        body = {"ready": not missing, "waiting_for": missing, "shortcomings": self.shortcomings()}
        return JSONResponse(body, 200 if not missing else 503)

    def _not_ready(self) -> list[str]:
        if self.collector is None:
            return []
        source = self.collector.source
        if source is None:
            return ["the Kubernetes API"]
        if source.ready.is_set():
            return []
        unsynced = [watch for watch in source.watches.values() if not watch.synced.is_set()]
        named = [f"{watch.resource.name}: {watch.trouble or 'the first list'}" for watch in unsynced]
        return named or [source.trouble or "the first list"]

    def shortcomings(self) -> list[str]:
        """What is not known because it may not be read."""
        source = self.collector.source if self.collector else None
        return source.shortcomings() if source else []

    # -- answers ----------------------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """The report of the last twelve hours."""
        answer = await self._ask(request, self._why)
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}
        return HTMLResponse(await asyncio.to_thread(render_html, answer), headers=headers)

    async def why(self, request: Request) -> Response:
        """As `pyrometer why -o json`."""
        return JSONResponse(await self._ask(request, self._why))

    async def cost(self, request: Request) -> Response:
        """As `pyrometer cost -o json`."""
        return JSONResponse(await self._ask(request, self._cost))

    async def _ask(self, request: Request, answer: Callable[[dict[str, str]], Answer]) -> Answer:
        unknown = sorted(set(request.query_params) - {*_WINDOW, "all", "by"})
        if unknown:
            raise _RefusedError(400, f"There is no parameter {unknown[0]!r}.")
        async with self.lock:
            return await asyncio.to_thread(answer, dict(request.query_params))

    def _why(self, asked: dict[str, str]) -> Answer:
        window, zone = self._window(asked)
        return why(self.store, window, self.settings, zone=zone)

    def _cost(self, asked: dict[str, str]) -> Answer:
        names = [name for name in asked.get("by", "team").split(",") if name]
        unknown = [name for name in names if name not in GROUPINGS or name == "cause"]
        if unknown or not names or len(set(names)) != len(names):
            raise _RefusedError(400, f"by={asked.get('by')!r} is not a list of groupings: {', '.join(GROUPINGS)}.")
        window, zone = self._window(asked)
        open_names(self.store)
        return cost(self.store, window, names, zone=zone)

    def _window(self, asked: dict[str, str]) -> Any:
        try:
            zone = zone_of(asked.get("tz") or self.settings.timezone)
            window = window_of(
                asked.get("last"), asked.get("since"), asked.get("until"), asked.get("month"),
                asked.get("all") in ("1", "true"), zone, "12h",
            )  # fmt: skip
        except WindowError as error:
            raise _RefusedError(400, str(error)) from None
        covered = self.account()
        if covered is None:
            raise _RefusedError(409, "There is nothing to account for yet.")
        return window(covered), zone

    def account(self) -> Any:
        """Brings the ledger up to date. The caller has the lock."""
        prices = read_price_book(Path(self.settings.price_book)) if self.settings.price_book else []
        return build(self.store, self.settings, now_ms=time.time_ns() // 1_000_000, prices=prices)

    # -- who may ------------------------------------------------------------------------------------------------------

    def guarded(
        self, what: str, route: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """The route, for those who may."""

        async def checked(request: Request) -> Response:
            try:
                self._check(request, what)
                return await route(request)
            except _RefusedError as refused:
                headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else None
                return JSONResponse({"error": refused.text}, refused.status, headers=headers)

        return checked

    def _check(self, request: Request, what: str) -> None:
        if self.open_to_all and not self.tokens.listed():
            host = (request.url.hostname or "").strip("[]")
            if host not in (*HOSTS, "::1"):  # another site's name for this machine
                raise _RefusedError(403, "This server answers only to its own name.")
            return
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        may = self.tokens.may(secret.strip(), what) if scheme.lower() == "bearer" else None
        if may is None:
            raise _RefusedError(401, "A token is needed: `Authorization: Bearer …`; `pyrometer token create` makes it.")
        if not may:
            raise _RefusedError(403, "This token is for something else.")


class _RefusedError(Exception):
    """An answer that says no."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def application(server: Server) -> Starlette:
    """The routes."""
    return Starlette(
        routes=[
            Route("/healthz", server.healthz),
            Route("/readyz", server.readyz),
            Route("/", server.guarded("view", server.page)),
            Route("/api/v1/why", server.guarded("view", server.why)),
            Route("/api/v1/cost", server.guarded("view", server.cost)),
        ]
    )
