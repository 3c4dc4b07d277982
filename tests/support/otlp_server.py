"""An OTLP server that fails in the ways a test selects. It has a real socket, in this process or in its own."""

from __future__ import annotations

import base64
import gzip
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REQUESTS = {
    "logs": ExportLogsServiceRequest,
    "metrics": ExportMetricsServiceRequest,
    "traces": ExportTraceServiceRequest,
}


class Collector:
    """Records the requests it accepts. Each request uses one of `moods`, and "ok" when none is left.

    ok, partial: accepts. 400, 429, 500, …: refuses. drop: closes the connection before it accepts the request.
    lost: accepts the request, then closes the connection. slow: answers 500 after a delay.
    """

    def __init__(self, moods: list[str] | None = None, *, port: int = 0, folder: Path | None = None) -> None:
        self.moods = moods or []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.taken: list[tuple[str, bytes]] = []
        self.folder = folder
        self._came = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                collector.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        mood = self.moods.pop(0) if self.moods else "ok"
        with self._came:
            self.requests.append((request.path, dict(request.headers)))
            if mood in ("ok", "partial", "lost"):
                self.taken.append((request.path, body))
                if self.folder is not None:
                    (self.folder / f"{len(list(self.folder.iterdir())):06d}").write_bytes(
                        request.path.encode() + b"\n" + body
                    )
            self._came.notify_all()
        if mood in ("drop", "lost"):
            request.close_connection = True
            request.connection.shutdown(2)
            return
        if mood == "slow":
            time.sleep(0.5)
        status = {"ok": 200, "partial": 200, "slow": 500}.get(mood) or int(mood)
        answer = {"partialSuccess": {"rejectedLogRecords": "1", "errorMessage": "too old"}} if mood == "partial" else {}
        text = json.dumps(answer).encode() if status == 200 else b"no\x1b[31m"
        request.send_response(status)
        if status == 429:
            request.send_header("Retry-After", "0.01")
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)

    def wait_for(self, count: int, *, include_refused: bool = False, limit_s: float = 20.0) -> None:
        """Waits until that many bodies were accepted, or accepted and refused."""
        seen = self.requests if include_refused else self.taken
        with self._came:
            assert self._came.wait_for(lambda: len(seen) >= count, limit_s), f"{len(seen)} of {count} came"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def decoded(path: str, body: bytes) -> Any:
    """The body as OpenTelemetry's own classes read it. Its JSON has ids in hex, that of protobuf in base 64."""
    request = json.loads(gzip.decompress(body))
    for resource in request.get("resourceSpans", ()):
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in {"traceId", "spanId", "parentSpanId"} & set(span):
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return json_format.ParseDict(request, REQUESTS[path.rpartition("/")[2]]())


def plain(attributes: Any) -> dict[str, Any]:
    """Attributes as a dictionary."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def logs(taken: list[tuple[str, bytes]]) -> list[tuple[dict[str, Any], Any]]:
    """Resource attributes and log records, in the order in which they came."""
    return [
        (plain(resource.resource.attributes), record)
        for path, body in taken
        if path.endswith("/v1/logs")
        for resource in decoded(path, body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def spans(taken: list[tuple[str, bytes]]) -> list[tuple[dict[str, Any], Any]]:
    return [
        (plain(resource.resource.attributes), span)
        for path, body in taken
        if path.endswith("/v1/traces")
        for resource in decoded(path, body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def points(taken: list[tuple[str, bytes]]) -> list[tuple[dict[str, Any], str, Any]]:
    """Resource attributes, name of the gauge and data point."""
    return [
        (plain(resource.resource.attributes), metric.name, point)
        for path, body in taken
        if path.endswith("/v1/metrics")
        for resource in decoded(path, body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.gauge.data_points
    ]


if __name__ == "__main__":  # python collector.py PORT FOLDER
    running = Collector(port=int(sys.argv[1]), folder=Path(sys.argv[2]))
    print(running.url, flush=True)
    sys.stdin.read()
