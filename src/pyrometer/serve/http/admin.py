"""Routes for admins: closing and rebuilding a month, and a backup of everything as a tar."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import tzinfo
from pathlib import Path
from typing import Any

from starlette.concurrency import iterate_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from pyrometer.account.build.rebuilding import rebuild_month
from pyrometer.account.closing.closing_months import ClosingError, close, json_of
from pyrometer.account.query.time_range import TimeRangeError, zone_of
from pyrometer.questions.tokens import Principal
from pyrometer.serve.core import Core
from pyrometer.serve.http.audit import Audit
from pyrometer.serve.http.guard import BODY_S, body_of
from pyrometer.serve.http.http_error import HttpError
from pyrometer.serve.runtime import run_to_end
from pyrometer.serve.tasks.accounting import Accounting
from pyrometer.store.backups.backup_members import (
    BackupError,
    BackupMember,
    BackupSnapshot,
    SentFiles,
    clear_leftovers,
    inbox_members,
)
from pyrometer.store.backups.backup_tar import packed

MAX_LIST_BYTES = 32 << 20  # of a list of parts: half a million parts
TAR = "application/x-tar"

_log = logging.getLogger("pyrometer")


class MonthRoutes:
    """Closes and rebuilds months of a server's store."""

    def __init__(self, core: Core, accounting: Accounting) -> None:
        self._core = core
        self._accounting = accounting

    async def close(self, request: Request) -> Response:
        """Closes a month. This cannot be undone."""
        return await self._run(request, self._close)

    async def rebuild(self, request: Request) -> Response:
        """Rebuilds the ledger of a month under the current rules."""
        return await self._run(request, self._rebuild)

    async def _run(self, request: Request, work: Callable[[str, tzinfo, str], dict[str, Any]]) -> Response:
        parameters = dict(request.query_params)
        if set(parameters) - {"month", "tz"} or "month" not in parameters:
            text = "Pass month=2026-10, and tz=ZONE if it is not the server's time zone. There are no other parameters."
            raise HttpError(400, text)
        try:
            zone = zone_of(parameters.get("tz") or self._core.settings.timezone)
            async with self._core.lock:
                answer = await run_to_end(work, parameters["month"], zone, request.state.principal.name)
        except TimeRangeError as error:
            raise HttpError(400, str(error)) from None
        except ClosingError as error:
            raise HttpError(409, str(error)) from None
        return JSONResponse(answer)

    def _close(self, month: str, zone: tzinfo, by: str) -> dict[str, Any]:
        self._accounting.bring_up_to_date(may_rest=False)
        now_ms = time.time_ns() // 1_000_000
        return json_of(close(self._core.store, self._core.settings, month, zone, now_ms=now_ms, by=by))

    def _rebuild(self, month: str, zone: tzinfo, by: str) -> dict[str, Any]:
        bring_up_to_date = self._accounting.bring_up_to_date
        return rebuild_month(self._core.store, month, zone, lambda: bring_up_to_date(may_rest=False))


class BackupRoute:
    """Sends backups of a server's store, one at a time. Parts that the client has are left out.

    The lock is held only while the state of the store is recorded. Files are read and sent afterwards, while the store
    is in use.
    """

    def __init__(self, core: Core, audit: Audit) -> None:
        self._core = core
        self._audit = audit
        self._busy = False
        self._ended = threading.Event()

    def end(self) -> None:
        """Breaks off a backup that is being sent, because the server stops. The client notices."""
        self._ended.set()

    async def send(self, request: Request) -> Response:
        """Sends a backup. The body lists the parts that the client has."""
        have = await self._parts_of_client(request)
        if self._busy:
            raise HttpError(409, "Another backup is in progress. Try again when it is complete.")
        principal: Principal = request.state.principal
        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(self._stream(principal, have), media_type=TAR, headers=headers)

    async def _parts_of_client(self, request: Request) -> frozenset[str]:
        try:
            body = await body_of(request, MAX_LIST_BYTES)
        except (TimeoutError, ClientDisconnect):
            raise HttpError(408, f"The body did not arrive within {BODY_S:g} s.") from None
        if len(body) > MAX_LIST_BYTES:
            raise HttpError(413, f"The list of parts is larger than {MAX_LIST_BYTES >> 20} MiB.")
        try:
            have = json.loads(body)["have"] if body else []
            if not isinstance(have, list) or not all(isinstance(path, str) for path in have):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            text = 'The body must be empty or list the parts that you have: {"have": ["parts/…", …]}.'
            raise HttpError(400, text) from None
        return frozenset(have)

    async def _stream(self, principal: Principal, have: frozenset[str]) -> AsyncIterator[bytes]:
        if self._busy:  # another request was faster
            raise BackupError("Another backup is in progress.")
        self._busy = True
        began_s, held_s, size, whole = time.monotonic(), 0.0, 0, False
        moment: BackupSnapshot | None = None
        sent: SentFiles = {}
        folder = self._core.store.folder
        try:
            await asyncio.to_thread(clear_leftovers, folder)
            async for chunk in iterate_in_threadpool(packed(inbox_members(folder, sent), last=False)):
                size += len(chunk)
                yield chunk
            async with self._core.lock:
                held_s = time.monotonic()
                moment = await run_to_end(self._moment)
                held_s = time.monotonic() - held_s
            async for chunk in iterate_in_threadpool(packed(self._until_ended(moment.members(have, sent)))):
                size += len(chunk)
                yield chunk
            whole = True
        except BackupError as error:  # too late for a status: the client sees that the tar is incomplete
            _log.error("A backup is incomplete: %s", error)
            raise
        finally:
            self._busy = False
            if moment is not None:
                moment.close()
            took_s = round(time.monotonic() - began_s, 3)
            about = {"files": len(sent), "bytes": size, "whole": whole, "seconds": took_s}
            about["held_ms"] = round(1000 * held_s, 1)  # how long the store was locked
            self._audit.write("backup", who=principal.name, role=principal.role, **about)

    def _moment(self) -> BackupSnapshot:
        book = self._core.settings.price_book
        return BackupSnapshot(self._core.store, [Path(book)] if book else [])

    def _until_ended(self, members: Iterator[BackupMember]) -> Iterator[BackupMember]:
        for member in members:
            if self._ended.is_set():
                raise BackupError("The server stops.")
            yield member
