"""The routes of a server, each with the permission that it needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from pyrometer.collect.otlp.requests import SIGNALS
from pyrometer.export.metrics_text import Collector as MetricsCollector
from pyrometer.export.metrics_text import render_metrics
from pyrometer.questions.registry import question_names
from pyrometer.questions.tokens import Principal
from pyrometer.render.why_html import render_html
from pyrometer.serve.disk import DUCKDB_ERRORS, UNANSWERED, Disk, reason_of
from pyrometer.serve.http import page_files
from pyrometer.serve.http.admin import BackupRoute, MonthRoutes
from pyrometer.serve.http.answering import Answer, AnswerFormat, Answering, limited_to_team
from pyrometer.serve.http.audit import Audit
from pyrometer.serve.http.auth import SESSION_PATH, Access, Sessions
from pyrometer.serve.http.downloads import DOWNLOADS, FILES, file_name
from pyrometer.serve.http.event_stream import EventStream
from pyrometer.serve.http.guard import SecurityHeaders, SenderFastPath
from pyrometer.serve.http.health import Health
from pyrometer.serve.http.http_error import HttpError, WrongTokenError
from pyrometer.serve.http.openapi import document
from pyrometer.serve.ingest.otlp_receiver import OtlpReceiver
from pyrometer.serve.ingest.remote_write_receiver import RemoteWriteReceiver

METRICS = "/metrics"
MIN_COMPRESSED_BYTES = 1_024
# The report needs nothing from outside, and has no scripts.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

Handler = Callable[[Request], Awaitable[Response]]


def _as_html(answer: Answer) -> bytes:
    return render_html(answer).encode()


AS_HTML = AnswerFormat("text/html; charset=utf-8", _as_html)


class Guarded:
    """Authenticates requests before their routes run, and writes the audit log."""

    def __init__(self, access: Access, audit: Audit, disk: Disk) -> None:
        self._access = access
        self._audit = audit
        self._disk = disk

    def __call__(self, permission: str, handler: Handler) -> Handler:
        """Wraps a handler so that it requires a permission."""

        async def checked(request: Request) -> Response:
            began_s = time.monotonic()
            try:
                principal = request.state.principal = self._access.authorize(request, permission)
            except HttpError as error:
                self._audit.refused(error, self._access.address(request), _path(request))
                return _error_response(error)
            status = 500
            try:
                response = await handler(request)
                status = response.status_code
            except HttpError as error:
                response = _error_response(error)
                status = error.status
            except DUCKDB_ERRORS as error:
                self._disk.failed(UNANSWERED, error)
                response = _error_response(HttpError(503, _unreadable(error)))
                status = response.status_code
            finally:
                self._record(request, principal, permission, status, began_s)
            return response

        return checked

    def _record(self, request: Request, principal: Principal, permission: str, status: int, began_s: float) -> None:
        if permission == "ingest" or request.url.path == METRICS:
            self._audit.count(principal.name, _path(request))
        else:
            address, parameters = self._access.address(request), dict(request.query_params)
            self._audit.request(principal, address, _path(request), parameters, status, began_s)


class ProbeRoutes:
    """Routes for probes and scrapers."""

    def __init__(self, health: Health, access: Access, audit: Audit, metrics: Sequence[MetricsCollector]) -> None:
        self._health = health
        self._access = access
        self._audit = audit
        self._metrics = metrics

    async def healthz(self, request: Request) -> Response:
        """200 while the process answers."""
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """200 once everything that existed at the start has been read. Principals that see all teams also get what
        is missing or failing."""
        missing = self._health.waiting_for()
        body = {"ready": not missing, "waiting_for": missing}
        try:
            self._access.authorize(request, "view_all")
            body["shortcomings"] = self._health.shortcomings()
        except WrongTokenError as error:
            self._audit.refused(error, self._access.address(request), _path(request))
        except HttpError:  # a probe has no token
            pass
        return JSONResponse(body, 200 if not missing else 503)

    async def metrics(self, request: Request) -> Response:
        """Metrics in the format of Prometheus."""
        body, form = render_metrics(self._metrics, request.headers.get("Accept", ""))
        return Response(body, headers={"Content-Type": form})


class AnswerRoutes:
    """Routes of the questions: JSON, files, the report, events."""

    def __init__(self, answering: Answering, access: Access, events: EventStream) -> None:
        self._answering = answering
        self._access = access
        self._events = events

    async def answer(self, request: Request) -> Response:
        """The answer to the question in the path, as JSON."""
        return await self._answering.respond(request, request.path_params["what"])

    async def report(self, request: Request) -> Response:
        """The report of `why`, as one page without scripts."""
        response = await self._answering.respond(request, "why", AS_HTML)
        response.headers["Content-Security-Policy"] = REPORT_POLICY
        return response

    async def download(self, request: Request) -> Response:
        """An answer as a file, which is written while it is sent."""
        form = request.path_params["form"]
        if form not in DOWNLOADS:
            raise HttpError(404, f"Format {form!r} not found. Known formats: {', '.join(DOWNLOADS)}.")
        download = DOWNLOADS[form]
        principal: Principal = request.state.principal
        parameters = limited_to_team(principal, dict(request.query_params))
        file_format = parameters.pop("as", None) if download.parquet else None
        if file_format not in (None, *FILES):
            raise HttpError(400, f"as={file_format!r} is unknown. Known values: {', '.join(FILES)}.")
        async with self._answering.turn():
            answer = await self._answering.ask(download.what, parameters, principal.team)
        pieces, kind, suffix = download.written_as(file_format)
        headers = {
            "Content-Disposition": f'attachment; filename="{file_name(form, answer, suffix)}"',
            "Cache-Control": "no-store",
        }
        return StreamingResponse(pieces(answer), media_type=kind, headers=headers)

    async def listen(self, request: Request) -> Response:
        """Events as they happen."""
        if self._events.is_full():
            raise HttpError(429, "Too many clients listen to events. Try again later.")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self.events_for(request), media_type="text/event-stream", headers=headers)

    async def events_for(self, request: Request) -> AsyncIterator[str]:
        """The events that the sender of a request may see, until they lose the permission."""
        principal: Principal = request.state.principal
        async with aclosing(self._events.events(principal.team)) as events:
            async for text in events:
                with suppress(HttpError):
                    if self._access.authorize(request, "view") == principal:
                        yield text
                        continue
                return

    async def document(self, request: Request) -> Response:
        """The OpenAPI document."""
        return JSONResponse(document())


def application(
    guarded: Guarded,
    probes: ProbeRoutes,
    answers: AnswerRoutes,
    sessions: Sessions,
    months: MonthRoutes,
    backup: BackupRoute,
    remote_write: RemoteWriteReceiver,
    otlp: OtlpReceiver,
    audit: Audit,
) -> Starlette:
    """The ASGI application of a server."""
    senders = [
        Route("/api/v1/write", guarded("ingest", remote_write.receive), methods=["POST"]),
        *(Route(f"/v1/{signal}", guarded("ingest", otlp.route(signal)), methods=["POST"]) for signal in SIGNALS),
    ]
    # Routes without authentication: they hold no data, or check the sender themselves.
    public = [
        Route("/healthz", probes.healthz, methods=["GET"]),
        Route("/readyz", probes.readyz, methods=["GET"]),
        Route(SESSION_PATH, sessions.route, methods=["GET", "POST", "DELETE"]),
        *(Route(path, page_files.page, methods=["GET"]) for path in page_files.PAGES),
        Route("/page/{name:path}", page_files.file, methods=["GET"]),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        warming = asyncio.create_task(asyncio.to_thread(page_files.warm))
        try:
            async with remote_write.storing(), otlp.storing():
                yield
            await warming
        finally:
            await asyncio.to_thread(audit.close)

    return _Application(
        senders,
        routes=[
            *senders,
            *public,
            Route("/report", guarded("view", answers.report)),
            Route(METRICS, guarded("view_all", probes.metrics)),
            Route("/api/v1/live", guarded("view", answers.listen)),
            Route("/api/v1/openapi.json", guarded("view", answers.document)),
            Route("/api/v1/close", guarded("administer", months.close), methods=["POST"]),
            Route("/api/v1/rebuild", guarded("administer", months.rebuild), methods=["POST"]),
            Route("/api/v1/backup", guarded("administer", backup.send), methods=["POST"]),
            Route("/api/v1/export/{form}", guarded("view", answers.download)),
            Route("/api/v1/{what}", guarded("view", answers.answer)),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=2)],
        lifespan=lifespan,
    )


class _Application(Starlette):
    """Every response has the security headers, errors included. Senders take the fast path."""

    def __init__(self, senders: list[Route], **options: Any) -> None:
        self._senders = senders
        super().__init__(**options)

    def build_middleware_stack(self) -> ASGIApp:
        return SecurityHeaders(SenderFastPath(super().build_middleware_stack(), self._senders))


def _unreadable(error: Exception) -> str:
    return f"The server's data cannot be read: {reason_of(error)}. See its log and run `pyrometer check DIR`."


def _path(request: Request) -> str:
    """The path as it is logged. An unknown path may contain anything, so its route is logged instead."""
    route = request.scope["route"].path
    return request.url.path if request.path_params.get("what") in question_names() else str(route)


def _error_response(error: HttpError) -> Response:
    return JSONResponse({"error": error.text}, error.status, headers=error.headers)
