"""A real OTLP/HTTP server on loopback that decodes requests with OpenTelemetry's own classes."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REQUESTS = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/traces": ExportTraceServiceRequest}


class Receiver:
    """The received requests by path. It sends the next of `answers`, and 200 when none is left."""

    def __init__(self) -> None:
        self.url = ""
        self.taken: dict[str, list[Any]] = {path: [] for path in REQUESTS}
        self.headers: list[dict[str, str]] = []
        self.answers: list[int] = []
        self.came = threading.Condition()

    def wait_for(self, what: Any) -> None:
        """Waits until a condition on the received requests is true."""
        with self.came:
            assert self.came.wait_for(what, timeout=30)

    def spans(self) -> list[tuple[dict[str, Any], Any]]:
        """Resources and their spans."""
        return [
            (plain(of.resource.attributes), span)
            for request in self.taken["/v1/traces"]
            for of in request.resource_spans
            for scope in of.scope_spans
            for span in scope.spans
        ]

    def points(self) -> list[tuple[dict[str, Any], Any, Any]]:
        """Resources, metrics and their points."""
        return [
            (plain(of.resource.attributes), metric, point)
            for request in self.taken["/v1/metrics"]
            for of in request.resource_metrics
            for scope in of.scope_metrics
            for metric in scope.metrics
            for point in getattr(metric, metric.WhichOneof("data")).data_points
        ]


def plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            with receiver.came:
                status = receiver.answers.pop(0) if receiver.answers else 200
                if status == 200:
                    receiver.taken[self.path].append(REQUESTS[self.path].FromString(body))
                    receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                receiver.came.notify_all()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield receiver
        server.shutdown()
        thread.join()
