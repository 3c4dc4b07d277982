"""The fast path of senders answers like the application."""

from __future__ import annotations

import asyncio

import httpx2 as httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pyrometer.serve.http.guard import HEADERS, SecurityHeaders, SenderFastPath


async def echo(request: Request) -> Response:
    return PlainTextResponse(request.scope["route"].path.encode() + b" " + await request.body())


async def fail(request: Request) -> Response:
    raise ZeroDivisionError


def test_sender_fast_path_answers_like_the_application() -> None:
    routes = [Route("/send", echo, methods=["POST"]), Route("/fail", fail, methods=["POST"])]

    async def answers(app: object) -> list[tuple[int, bytes, bool]]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            requests = [("POST", "/send"), ("POST", "/fail"), ("GET", "/send"), ("POST", "/other"), ("PUT", "/fail")]
            got = [await client.request(method, path, content=b"body") for method, path in requests]
        return [(one.status_code, one.content, set(map(str.lower, HEADERS)) <= set(one.headers)) for one in got]

    app = Starlette(routes=routes)
    fast = asyncio.run(answers(SecurityHeaders(SenderFastPath(app, routes))))
    assert fast == asyncio.run(answers(SecurityHeaders(app)))
    assert [status for status, _, _ in fast] == [200, 500, 405, 404, 405]
    assert fast[0][1] == b"/send body"
    assert all(headers for _, _, headers in fast)
