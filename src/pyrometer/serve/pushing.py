"""Pushes a server's metrics and traces over OTLP/HTTP to whoever the settings name: a Collector, as a rule.

It is a task of its own. A receiver that is away or slow holds up nothing but the next push: metrics are cumulative, so
that none is missed, and spans wait in the store, for an hour at most. Only settings say where to; OTEL_* variables that
happen to be there do not.
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
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from pyrometer import __version__
from pyrometer.act.post import SendResult, is_address, post
from pyrometer.export.otlp_push import MARKS, Marks, Pushed, ended_runs, metric_bodies, run_body, step_bodies
from pyrometer.model.settings import SettingError, Settings
from pyrometer.serve.access import RefusedError
from pyrometer.serve.threads import to_its_end

if TYPE_CHECKING:
    from pyrometer.serve.app import Server

LEAST_INTERVAL_S = 5
MOST_HEADERS = 32
PROTOBUF = "application/x-protobuf"
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_RESPONSES: dict[str, tuple[Any, str]] = {
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
}
log = logging.getLogger("pyrometer")


class Pushing:
    """Off until an endpoint is set."""

    def __init__(self, server: Server) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  # points and spans by signal and what became of them
        self._server = server
        self._settings = server.settings
        self._since_ms = time.time_ns() // 1_000_000
        self._trouble: dict[str, str] = {}  # by signal, as it was said last
        self._resource = resource_of(server.settings, server.store.folder)

    @property
    def is_on(self) -> bool:
        """Whether anything is configured."""
        return bool(self._settings.otlp_endpoint)

    async def run(self) -> None:
        """For ever."""
        interval_s = max(self._settings.otlp_interval_s, LEAST_INTERVAL_S)
        while True:
            await self.push()
            await asyncio.sleep(interval_s)

    async def push(self) -> None:
        """Everything that there is now."""
        try:
            headers = {**headers_of(self._settings), "Content-Type": PROTOBUF, "Content-Encoding": "gzip"}
        except SettingError as error:  # the file is being exchanged
            self._say("headers", str(error))
            return
        await self._push_metrics(headers)
        await self._push_spans(headers)

    async def _push_metrics(self, headers: dict[str, str]) -> None:
        def bodies() -> list[bytes]:
            server = self._server
            families = [one for part in server.exposed() for one in part.collect()]
            return list(metric_bodies(families, self._resource, self._since_ms, time.time_ns() // 1_000_000))

        for body in await asyncio.to_thread(bodies):
            outcome = await self._post("metrics", body, headers)
            if not outcome.sent and not outcome.permanent:
                return  # the next push has all of it

    async def _push_spans(self, headers: dict[str, str]) -> None:
        now_ms = time.time_ns() // 1_000_000
        server = self._server
        async with server.lock:
            marks = Marks.read(server.store.meta(MARKS), now_ms).advanced(now_ms)
            server.store.set_meta(MARKS, marks.text())
            snapshot = await to_its_end(server.store.snapshot)

        def found() -> tuple[list[Pushed], dict[str, int]]:
            with snapshot:
                return list(step_bodies(snapshot, marks, now_ms)), ended_runs(snapshot, marks, now_ms)

        reading = asyncio.create_task(asyncio.to_thread(found))
        try:
            steps, runs = await asyncio.shield(reading)
        except asyncio.CancelledError:  # the server stops: nobody reads a store that is closed
            server.store.interrupt_readers()
            with suppress(Exception):
                await reading
            raise
        for pushed in steps:
            if not await self._push_body(pushed.body, headers):
                return
            marks = marks._replace(ranks=marks.ranks | pushed.ranks)
            await self._keep(marks)
        async for run, ended_ms, body in self._lives(runs, marks):
            if body is not None and not await self._push_body(body, headers):
                return
            marks = marks._replace(runs={**marks.runs, run: ended_ms})
            await self._keep(marks)

    async def _lives(self, runs: dict[str, int], marks: Marks) -> AsyncIterator[tuple[str, int, bytes | None]]:
        for run, ended_ms in runs.items():
            with suppress(RefusedError):  # what there is to say of it is not accounted for yet
                trace = await self._server.ask("trace", {"run": run})
                yield run, ended_ms, await asyncio.to_thread(run_body, trace, marks.runs.get(run, 0))

    async def _push_body(self, body: bytes, headers: dict[str, str]) -> bool:
        """Whether it need not be pushed again."""
        outcome = await self._post("traces", body, headers)
        return outcome.sent or outcome.permanent

    async def _keep(self, marks: Marks) -> None:
        async with self._server.lock:
            await to_its_end(self._server.store.set_meta, MARKS, marks.text())

    async def _post(self, signal: str, body: bytes, headers: dict[str, str]) -> SendResult:
        packed = await asyncio.to_thread(gzip.compress, body, 5)
        outcome = await post(f"{self._settings.otlp_endpoint.rstrip('/')}/v1/{signal}", packed, headers)
        what = "sent" if outcome.sent else "refused" if outcome.permanent else "failed"
        self.counts[signal, what] += 1
        rejected = _rejected(signal, outcome.response) if outcome.sent else ""
        self._say(signal, f"{signal} over OTLP: {outcome.error or rejected}" if outcome.error or rejected else "")
        return outcome

    def _say(self, signal: str, trouble: str) -> None:
        """Once, until it is another."""
        if trouble and self._trouble.get(signal) != trouble:
            log.warning("%s", trouble)
        self._trouble[signal] = trouble


def _rejected(signal: str, answer: bytes) -> str:
    """What a receiver that took a body says it did not take of it."""
    response, field = _RESPONSES[signal]
    try:
        partial = response.FromString(answer).partial_success
    except Exception:  # not protobuf: some answer with nothing, or with words
        return ""
    count = getattr(partial, field)
    return f"{count} of them were rejected: {partial.error_message[:200]}" if count else ""


def receiver(settings: Settings) -> str | None:
    """Who gets what, in words; what is wrong with that is raised. None: nobody."""
    url = settings.otlp_endpoint
    if not url:
        return None
    if not is_address(url) or "@" in url or "?" in url:
        raise SettingError(
            "Setting 'otlp_endpoint' is no plain address. Name one like http://collector:4318; secrets belong into the "
            "file that 'otlp_headers_file' names."
        )
    headers_of(settings)
    every_s = max(settings.otlp_interval_s, LEAST_INTERVAL_S)
    return f"Metrics and traces go to {url} over OTLP, every {every_s} s."


def headers_of(settings: Settings) -> dict[str, str]:
    """The headers of a file with one a line, as `Name: value`. Errors never say a value."""
    path = settings.otlp_headers_file
    if not path:
        return {}
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no plain text"
        raise SettingError(f"Setting 'otlp_headers_file' names {path}: {reason}.") from None
    found = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not name.strip().replace("-", "").isalnum() or not value.strip().isprintable():
            raise SettingError(f"Setting 'otlp_headers_file' names {path}, whose line {number} is no `Name: value`.")
        found[name.strip()] = value.strip()
    if len(found) > MOST_HEADERS:
        raise SettingError(f"Setting 'otlp_headers_file' names {path}, which has more than {MOST_HEADERS} headers.")
    return found


def resource_of(settings: Settings, folder: Path) -> dict[str, Any]:
    """Who speaks, in the words of OpenTelemetry's conventions."""
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
