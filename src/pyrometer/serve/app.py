"""The HTTP side of a server: is it well, the page, the answers as JSON, and what is sent to it."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from pyrometer.account.ledger import Accounted
from pyrometer.account.windows import WindowError
from pyrometer.collect.otlp import SIGNALS
from pyrometer.explain.html import render_html
from pyrometer.export.prometheus import Ledger, exposition
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.serve.address import Address
from pyrometer.serve.collector import Collector
from pyrometer.serve.history import Remembering
from pyrometer.serve.otlp import Otlp
from pyrometer.serve.questions import NothingError, Question, QuestionError, bring_up_to_date, question
from pyrometer.serve.remote_write import RemoteWrite
from pyrometer.serve.report import HOSTS, POLICY
from pyrometer.serve.telemetry import Telemetry
from pyrometer.serve.tokens import Tokens
from pyrometer.serve.vitals import Vitals
from pyrometer.store import Store

SEAL_EVERY_S = 300.0
FINDINGS_EVERY_S = 300.0  # on /metrics; questions are always answered anew
Answer = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]


class Server:
    """What the routes share. The lock is held while the store is used."""

    def __init__(self, store: Store, settings: Settings, lock: asyncio.Lock, *, open_to_all: bool) -> None:
        self.store = store
        self.settings = settings
        self.lock = lock
        self.collector: Collector | None = None
        self.telemetry: list[Telemetry | Remembering] = []
        self.reading: str | None = None  # what has to be read before anything is followed
        self.remote_write = RemoteWrite(self)
        self.otlp = Otlp(self)
        self.tokens = Tokens(store.folder)
        self.address: Address | None = None  # as it lies in the folder
        self.open_to_all = open_to_all  # on loopback, as long as nobody has made a token
        self.counted = Ledger()
        self.end_ms = 0  # the newest accounted minute
        self.accounting_s = 0.0
        self._findings_due_s = 0.0
        self._seal_due_s = time.monotonic() + SEAL_EVERY_S

    # -- is it well -------------------------------------------------------------------------------------------------

    async def healthz(self, request: Request) -> Response:
        """The process answers."""
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """Everything that was there at the start has been seen, and what may not be read is known."""
        missing = self.not_ready()
        body = {"ready": not missing, "waiting_for": missing, "shortcomings": self.shortcomings()}
        return JSONResponse(body, 200 if not missing else 503)

    def not_ready(self) -> list[str]:
        """What is still waited for."""
        if self.reading is not None:
            return [self.reading]
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
        said = source.shortcomings() if source else []
        return [*said, *(text for one in self.telemetry for text in one.source.shortcomings())]

    def node_uid_of(self, name: str) -> str | None:
        """The node of that name, where Kubernetes knows it."""
        cluster = self.collector.cluster if self.collector else None
        return cluster.node_uid_of(name) if cluster else None

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        body, form = exposition((self.counted, Vitals(self)), request.headers.get("Accept", ""))
        return Response(body, headers={"Content-Type": form})

    # -- answers ----------------------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """The report of the last twelve hours."""
        answer = await self._ask("why", dict(request.query_params))
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}
        return HTMLResponse(await asyncio.to_thread(render_html, answer), headers=headers)

    async def answer(self, request: Request) -> Response:
        """What the command of that name says, as JSON."""
        what = request.path_params["what"]
        return JSONResponse(await self._ask(what, dict(request.query_params)))

    async def _ask(self, what: str, parameters: dict[str, str]) -> Answer:
        try:
            asked = question(what, parameters, self.settings)
            async with self.lock:
                return await asyncio.to_thread(self._answer, asked)
        except (QuestionError, WindowError) as error:
            raise _RefusedError(400, str(error)) from None
        except NothingError as error:
            raise _RefusedError(404, str(error)) from None

    def _answer(self, asked: Question) -> Answer:
        covered = self.account()
        if covered is None:
            raise _RefusedError(409, "There is nothing to account for yet.")
        return asked(self.store, covered)

    def account(self) -> Accounted | None:
        """Brings the ledger up to date. The caller has the lock."""
        began_s = time.monotonic()
        covered = bring_up_to_date(self.store, self.settings, now_ms=time.time_ns() // 1_000_000)
        self.accounting_s = time.monotonic() - began_s
        self.end_ms = covered.end_ms if covered else 0
        return covered

    def keep_books(self) -> None:
        """Seals hours that are over, brings ledger and counters up to date. The caller has the lock."""
        if time.monotonic() >= self._seal_due_s:
            self._seal_due_s = time.monotonic() + SEAL_EVERY_S
            self.store.seal(before_ms=time.time_ns() // 1_000_000 - MS_PER_HOUR)
        covered = self.account()
        if covered is None:
            return
        self.counted.count(self.store, covered.end_ms)
        if time.monotonic() >= self._findings_due_s:
            self._findings_due_s = time.monotonic() + FINDINGS_EVERY_S
            self.counted.found(question("why", {}, self.settings)(self.store, covered)["findings"])

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
        may = self._may(secret.strip(), what) if scheme.lower() == "bearer" else None
        if may is None:
            raise _RefusedError(401, "A token is needed: `Authorization: Bearer …`; `pyrometer token create` makes it.")
        if not may:
            raise _RefusedError(403, "This token is for something else.")

    def _may(self, secret: str, what: str) -> bool | None:
        if self.address is not None and hmac.compare_digest(secret.encode(), (self.address.token or "").encode()):
            return what == "view"
        return self.tokens.may(secret, what)


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
            Route("/metrics", server.guarded("view", server.metrics)),
            Route("/api/v1/write", server.guarded("ingest", server.remote_write.take), methods=["POST"]),
            *(
                Route(f"/v1/{signal}", server.guarded("ingest", server.otlp.route(signal)), methods=["POST"])
                for signal in SIGNALS
            ),
            Route("/api/v1/{what}", server.guarded("view", server.answer)),
        ],
        lifespan=lambda _: _keeping(server),
    )


@asynccontextmanager
async def _keeping(server: Server) -> AsyncIterator[None]:
    async with server.remote_write.keeping(), server.otlp.keeping():
        yield
