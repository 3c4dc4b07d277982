"""A real HTTP server on loopback that records the messages it receives and sends the configured answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "T00SECRET/B00SECRET/xyzzy"


class Receiver:
    """The received messages. It sends the next of `answers`, and 200 when none is left."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.taken = threading.Semaphore(0)
        self.url = ""

    @property
    def heads(self) -> list[str]:
        """The first lines of the messages, which notifications show."""
        return [body["text"].splitlines()[0] for body in self.bodies]

    def wait(self, count: int = 1) -> None:
        """Waits until `count` more requests were received."""
        for _ in range(count):
            assert self.taken.acquire(timeout=20)


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, reply = receiver.answers.pop(0) if receiver.answers else (200, {}, b"ok")
            if status == 200:
                receiver.bodies.append(json.loads(body))
                receiver.headers.append(dict(self.headers))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)
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
