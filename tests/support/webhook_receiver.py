"""A receiver of messages: a real HTTP server on loopback that keeps what it is sent, and answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "T00SECRET/B00SECRET/xyzzy"


class Receiver:
    """What was sent, and what is answered: the next of `answers`, then 200 for ever."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.taken = threading.Semaphore(0)
        self.url = ""

    @property
    def heads(self) -> list[str]:
        """What people were told, as notifications show it."""
        return [body["text"].splitlines()[0] for body in self.bodies]

    def wait(self, count: int = 1) -> None:
        """Until so many more requests were taken."""
        for _ in range(count):
            assert self.taken.acquire(timeout=20)


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, said = receiver.answers.pop(0) if receiver.answers else (200, {}, b"ok")
            if status == 200:
                receiver.bodies.append(json.loads(body))
                receiver.headers.append(dict(self.headers))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)
            receiver.taken.release()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}/services/{SECRET}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
