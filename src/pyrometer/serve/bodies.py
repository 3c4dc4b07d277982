"""Bodies of requests, which take neither all memory nor all time."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

BODY_S = 30.0  # for a whole body to come
RETRY_S = 5
TAR = "application/x-tar"


async def body_of(request: Request, most_bytes: int, within_s: float = BODY_S) -> bytes:
    """The body, which is not read to its end when it is larger than it may be: a little more is returned."""
    body = bytearray()
    async with asyncio.timeout(within_s):
        async for chunk in request.stream():
            body += chunk
            if len(body) > most_bytes:  # who reads it says so
                break
    return bytes(body)
