"""POST /api/v1/backup: everything as it is now, as a tar, for admins. Parts that the client has are left out.

The store is used by nobody else for as long as it takes to note the moment; everything after that is read beside those
who write, and sent piece by piece.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.concurrency import iterate_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from pyrometer.serve.access import RefusedError, Who
from pyrometer.serve.bodies import BODY_S, TAR, body_of
from pyrometer.serve.threads import to_its_end
from pyrometer.store.backup import BackupError, BackupMember, BackupSnapshot, SentFiles, clear_leftovers, inbox_members
from pyrometer.store.backup_tar import packed

if TYPE_CHECKING:
    from pyrometer.serve.app import Server

MOST_BYTES = 32 << 20  # of a list of parts: half a million

_log = logging.getLogger("pyrometer")


class Backups:
    """Takes backups of a server's store, one at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._busy = False
        self._ended = threading.Event()

    def end(self) -> None:
        """The server stops: what is being sent breaks off, and the client knows by that."""
        self._ended.set()

    async def take(self, request: Request) -> Response:
        """The route. The body says which parts the client has."""
        have = await self._have(request)
        if self._busy:
            raise RefusedError(409, "A backup is being taken already: wait for it.")
        who: Who = request.state.who
        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(self._stream(who, have), media_type=TAR, headers=headers)

    async def _have(self, request: Request) -> frozenset[str]:
        try:
            body = await body_of(request, MOST_BYTES)
        except (TimeoutError, ClientDisconnect):
            raise RefusedError(408, f"The body did not come within {BODY_S:g} s.") from None
        if len(body) > MOST_BYTES:
            raise RefusedError(413, f"The list of parts has more than {MOST_BYTES >> 20} MiB.")
        try:
            have = json.loads(body)["have"] if body else []
            if not isinstance(have, list) or not all(isinstance(path, str) for path in have):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            text = 'The body says which parts you have: {"have": ["parts/…", …]}; an empty one: none.'
            raise RefusedError(400, text) from None
        return frozenset(have)

    async def _stream(self, who: Who, have: frozenset[str]) -> AsyncIterator[bytes]:
        if self._busy:  # of two that came at once, one
            raise BackupError("A backup is being taken already.")
        self._busy = True
        began_s, held_s, size, whole = time.monotonic(), 0.0, 0, False
        moment: BackupSnapshot | None = None
        sent: SentFiles = {}
        folder = self._server.store.folder
        try:
            await asyncio.to_thread(clear_leftovers, folder)
            async for chunk in iterate_in_threadpool(packed(inbox_members(folder, sent), last=False)):
                size += len(chunk)
                yield chunk
            async with self._server.lock:
                held_s = time.monotonic()
                moment = await to_its_end(self._moment)
                held_s = time.monotonic() - held_s
            async for chunk in iterate_in_threadpool(packed(self._going_on(moment.members(have, sent)))):
                size += len(chunk)
                yield chunk
            whole = True
        except BackupError as error:  # too late for a status: the client sees that it ends early
            _log.error("A backup broke off: %s", error)
            raise
        finally:
            self._busy = False
            if moment is not None:
                moment.close()
            took_s = round(time.monotonic() - began_s, 3)
            about = {"files": len(sent), "bytes": size, "whole": whole, "seconds": took_s}
            about["held_ms"] = round(1000 * held_s, 1)  # nobody else could use the store
            self._server.audit.say("backup", who=who.name, role=who.role, **about)

    def _moment(self) -> BackupSnapshot:
        book = self._server.settings.price_book
        return BackupSnapshot(self._server.store, [Path(book)] if book else [])

    def _going_on(self, members: Iterator[BackupMember]) -> Iterator[BackupMember]:
        for member in members:
            if self._ended.is_set():
                raise BackupError("The server stops.")
            yield member
