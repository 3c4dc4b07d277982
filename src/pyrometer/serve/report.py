"""Serves one page on this machine until it is told to stop. It reads nothing of a request but its path."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOOPBACK = "127.0.0.1"
PORT = 8411
HOSTS = (LOOPBACK, "localhost")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # of the report: it needs nothing from outside


def report_server(page: Callable[[], str], *, port: int = PORT) -> ThreadingHTTPServer:
    """A server for a page that may change; on another port when this one is taken. Its caller runs and closes it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Host", "").partition(":")[0] not in HOSTS:  # another site's name for this machine
                self.send_error(403)
                return
            if self.path.partition("?")[0] != "/":
                self.send_error(404)
                return
            body = page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", POLICY)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """A visitor is no news."""

    try:
        return ThreadingHTTPServer((LOOPBACK, port), Handler)
    except OSError:
        return ThreadingHTTPServer((LOOPBACK, 0), Handler)
