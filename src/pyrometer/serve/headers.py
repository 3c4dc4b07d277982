"""What every response says to browsers: nothing from elsewhere, no script but the server's own files, in no frame."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # charts set styles of their elements
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# As ASGI has them: in lower case.
_RAW = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class Headers:
    """Adds them to what an application sends; what says something stricter itself keeps that."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                said = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(header for header in _RAW if header[0] not in said)]
            await send(message)

        await self._app(scope, receive, send_with_headers)
