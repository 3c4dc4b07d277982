"""The task that pushes a server's metrics and traces over OTLP/HTTP to the endpoint of the settings, often a Collector.

A receiver that is unreachable or slow delays only the next push: metrics are cumulative, so that none is missed, and
spans wait in the store for an hour at most. Only the settings name the endpoint. OTEL_* variables have no effect.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from pyrometer import __version__
from pyrometer.act.http_post import SendResult, is_address, post
from pyrometer.export.metrics_text import Collector as MetricsCollector
from pyrometer.export.otlp_push import (
    PUSH_MARKS_KEY,
    PushMarks,
    SpanBatch,
    ended_runs,
    metric_bodies,
    run_body,
    step_bodies,
)
from pyrometer.model.settings import SettingError, Settings
from pyrometer.serve.core import Core
from pyrometer.serve.http.answering import Ask
from pyrometer.serve.http.http_error import HttpError
from pyrometer.serve.runtime import run_to_end

MIN_INTERVAL_S = 5
MAX_HEADERS = 32
PROTOBUF = "application/x-protobuf"
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_RESPONSES: dict[str, tuple[Any, str]] = {
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
}
log = logging.getLogger("pyrometer")


class OtlpPushTask:
    """Pushes to the endpoint of the settings. Off when there is none."""

    def __init__(self, core: Core, metrics: Callable[[], Iterable[MetricsCollector]], ask: Ask) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  # bodies by signal and outcome
        self._store, self._lock, self._settings = core.store, core.lock, core.settings
        self._metrics = metrics
        self._ask = ask
        self._since_ms = time.time_ns() // 1_000_000
        self._trouble: dict[str, str] = {}  # by signal, as last logged
        self._resource = resource_of(core.settings, core.store.folder)

    @property
    def is_on(self) -> bool:
        """Whether there is an endpoint."""
        return bool(self._settings.otlp_endpoint)

    async def run(self) -> None:
        """Pushes until it is cancelled."""
        interval_s = max(self._settings.otlp_interval_s, MIN_INTERVAL_S)
        while True:
            await self.push()
            await asyncio.sleep(interval_s)

    async def push(self) -> None:
        """Pushes everything that is new."""
        try:
            headers = {**headers_of(self._settings), "Content-Type": PROTOBUF, "Content-Encoding": "gzip"}
        except SettingError as error:  # the file may be in the process of being replaced
            self._report("headers", str(error))
            return
        await self._push_metrics(headers)
        await self._push_spans(headers)

    async def _push_metrics(self, headers: dict[str, str]) -> None:
        def bodies() -> list[bytes]:
            families = [one for collector in self._metrics() for one in collector.collect()]
            return list(metric_bodies(families, self._resource, self._since_ms, time.time_ns() // 1_000_000))

        for body in await asyncio.to_thread(bodies):
            outcome = await self._post("metrics", body, headers)
            if not outcome.sent and not outcome.permanent:
                return  # the next push includes it

    async def _push_spans(self, headers: dict[str, str]) -> None:
        now_ms = time.time_ns() // 1_000_000
        async with self._lock:
            marks = PushMarks.read(self._store.meta(PUSH_MARKS_KEY), now_ms).advanced(now_ms)
            self._store.set_meta(PUSH_MARKS_KEY, marks.text())
            snapshot = await run_to_end(self._store.snapshot)

        def found() -> tuple[list[SpanBatch], dict[str, int]]:
            with snapshot:
                return list(step_bodies(snapshot, marks, now_ms)), ended_runs(snapshot, marks, now_ms)

        reading = asyncio.create_task(asyncio.to_thread(found))
        try:
            steps, runs = await asyncio.shield(reading)
        except asyncio.CancelledError:  # the server stops: the store must not be read after it is closed
            self._store.interrupt_readers()
            with suppress(Exception):
                await reading
            raise
        for pushed in steps:
            if not await self._push_body(pushed.body, headers):
                return
            marks = marks._replace(ranks=marks.ranks | pushed.ranks)
            await self._keep(marks)
        async for run, ended_ms, body in self._run_traces(runs, marks):
            if body is not None and not await self._push_body(body, headers):
                return
            marks = marks._replace(runs={**marks.runs, run: ended_ms})
            await self._keep(marks)

    async def _run_traces(self, runs: dict[str, int], marks: PushMarks) -> AsyncIterator[tuple[str, int, bytes | None]]:
        for run, ended_ms in runs.items():
            with suppress(HttpError):  # the run is not accounted for yet
                trace = await self._ask("trace", {"run": run})
                yield run, ended_ms, await asyncio.to_thread(run_body, trace, marks.runs.get(run, 0))

    async def _push_body(self, body: bytes, headers: dict[str, str]) -> bool:
        """Pushes a body. Returns whether it need not be pushed again."""
        outcome = await self._post("traces", body, headers)
        return outcome.sent or outcome.permanent

    async def _keep(self, marks: PushMarks) -> None:
        async with self._lock:
            await run_to_end(self._store.set_meta, PUSH_MARKS_KEY, marks.text())

    async def _post(self, signal: str, body: bytes, headers: dict[str, str]) -> SendResult:
        packed = await asyncio.to_thread(gzip.compress, body, 5)
        outcome = await post(f"{self._settings.otlp_endpoint.rstrip('/')}/v1/{signal}", packed, headers)
        what = "sent" if outcome.sent else "refused" if outcome.permanent else "failed"
        self.counts[signal, what] += 1
        rejected = _rejected(signal, outcome.response) if outcome.sent else ""
        self._report(signal, f"{signal} over OTLP: {outcome.error or rejected}" if outcome.error or rejected else "")
        return outcome

    def _report(self, signal: str, trouble: str) -> None:
        """Logs a trouble when it is new."""
        if trouble and self._trouble.get(signal) != trouble:
            log.warning("%s", trouble)
        self._trouble[signal] = trouble


def _rejected(signal: str, answer: bytes) -> str:
    """What a receiver rejected from a body that it accepted."""
    response, field = _RESPONSES[signal]
    try:
        partial = response.FromString(answer).partial_success
    except Exception:  # not protobuf: some receivers answer with nothing or with text
        return ""
    count = getattr(partial, field)
    return f"{count} of them were rejected: {partial.error_message[:200]}" if count else ""


def receiver(settings: Settings) -> str | None:
    """The endpoint and interval in one sentence, or None when there is no endpoint. Raises what is wrong with it."""
    url = settings.otlp_endpoint
    if not url:
        return None
    if not is_address(url) or "@" in url or "?" in url:
        raise SettingError(
            "Setting 'otlp_endpoint' is not a plain URL like http://collector:4318. Put secrets into the file that "
            "'otlp_headers_file' names."
        )
    headers_of(settings)
    every_s = max(settings.otlp_interval_s, MIN_INTERVAL_S)
    return f"Metrics and traces go to {url} over OTLP, every {every_s} s."


def headers_of(settings: Settings) -> dict[str, str]:
    """The headers of a file that has one `Name: value` per line. Errors never contain a value."""
    path = settings.otlp_headers_file
    if not path:
        return {}
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise SettingError(f"Setting 'otlp_headers_file' names {path}: {reason}.") from None
    found = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not name.strip().replace("-", "").isalnum() or not value.strip().isprintable():
            raise SettingError(f"Setting 'otlp_headers_file' names {path}, whose line {number} is not `Name: value`.")
        found[name.strip()] = value.strip()
    if len(found) > MAX_HEADERS:
        raise SettingError(f"Setting 'otlp_headers_file' names {path}, which has more than {MAX_HEADERS} headers.")
    return found


def resource_of(settings: Settings, folder: Path) -> dict[str, Any]:
    """The attributes of this server as a resource, as OpenTelemetry names them."""
    host = socket.gethostname()
    found: dict[str, Any] = {
        "service.name": "pyrometer",
        "service.version": __version__,
        "service.instance.id": hashlib.sha256(f"{host} {folder.absolute()}".encode()).hexdigest()[:16],
        "host.name": host,
        "k8s.cluster.name": settings.cluster or None,
    }
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        found["k8s.pod.name"] = os.environ.get("HOSTNAME") or host
        with suppress(OSError):
            found["k8s.namespace.name"] = _NAMESPACE.read_text(encoding="utf-8").strip()
    return {name: value for name, value in found.items() if value is not None}
