"""POST /v1/logs, traces and metrics: who may, what is answered, and that what was acknowledged is stored once."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import duckdb
import httpx2 as httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from prometheus_client.parser import text_string_to_metric_families

from pyrometer.collect.otlp.requests import MAX_BYTES, MAX_PACKED_BYTES, SIGNALS
from pyrometer.model.records import Allocation, Pod, Workload
from pyrometer.questions.tokens import Tokens
from pyrometer.serve.ingest import otlp_receiver, step_store
from pyrometer.serve.main import Services
from pyrometer.store import Store
from tests.support import cpu_run, otlp_json
from tests.support.server_in_process import server_and_client

JSON = {"Content-Type": "application/json"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}
GZIP = {"Content-Encoding": "gzip"}
KINDS = ("run", "step_window", "span", "batch", "metric", "event", "slot", "pod", "allocation", "gpu_sample")
T0 = time.time_ns() // 1_000_000 - 7_200_000


def in_store(
    folder: Path, talk: Callable[[Services, httpx.AsyncClient], Awaitable[Any]], *, crash: bool = False, **nodes: str
) -> dict[str, list[Any]]:
    """The records in the store after requests to a server."""

    async def run() -> None:
        async with server_and_client(store, crash=crash, uid_of=nodes.get) as (server, client):
            await talk(server, client)

    with Store(folder, create=True) as store:
        asyncio.run(run())
        store.expose_all(KINDS)
        return {
            kind: [repr(row) for row in store.connection.execute(f"FROM {kind} ORDER BY ALL").fetchall()]
            for kind in KINDS
        }


async def nothing(server: Services, client: httpx.AsyncClient) -> None:
    pass


async def send(client: httpx.AsyncClient, signal: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
    return await client.post(f"/v1/{signal}", content=body, headers=headers)


def ways(signal: str, request: Any) -> list[tuple[bytes, dict[str, str]]]:
    """One request in every form."""
    text, binary = json.dumps(request).encode(), otlp_json.as_protobuf(signal, request)
    return [
        (text, JSON),
        (gzip.compress(text), JSON | GZIP),
        (binary, PROTOBUF),
        (gzip.compress(binary), PROTOBUF | GZIP),
        (text, {"Content-Type": "Application/JSON; charset=utf-8", "Content-Encoding": "identity"}),
    ]


def test_all_otlp_formats_store_the_same_records_once(tmp_path: Path) -> None:
    requests = otlp_json.requests(cpu_run.story(T0))
    stored = []
    for number in range(len(ways("logs", requests["logs"]))):

        async def talk(server: Services, client: httpx.AsyncClient, number: int = number) -> None:
            for signal, request in (*requests.items(), *requests.items()):
                body, headers = ways(signal, request)[number]
                answer = await send(client, signal, body, headers)
                assert answer.status_code == 200
                assert answer.headers["Content-Type"].lower() == headers["Content-Type"].partition(";")[0].lower()
                assert answer.content in (b"", b"{}")
            await server.otlp.store()

        stored.append(in_store(tmp_path / str(number), talk))
        assert not list((tmp_path / str(number) / "inbox" / "otlp").iterdir())
    assert all(one == stored[0] for one in stored)
    assert {kind: len(rows) for kind, rows in stored[0].items()} == {
        "run": 4,
        "step_window": 100,
        "span": 60,
        "batch": 10,
        "metric": 50,
        "event": 12,
        "slot": 0,
        "pod": 0,
        "allocation": 0,
        "gpu_sample": 0,
    }


def test_unusable_records_are_reported_in_the_request_format(tmp_path: Path) -> None:
    who = cpu_run.identity("l", 0, T0)
    messages = [otlp_json.window(T0, 0), ("window", {"time_ms": T0}), ("run", {"time_ms": 5})]
    (request,) = otlp_json.requests([(who, messages)]).values()

    async def talk(server: Services, client: httpx.AsyncClient) -> None:
        answer = await send(client, "logs", json.dumps(request).encode(), JSON)
        partial_success = {"rejectedLogRecords": "2", "errorMessage": "wrong time: 1, wrong value: 1"}
        assert (answer.status_code, answer.json()) == (200, {"partialSuccess": partial_success})
        answer = await send(client, "logs", otlp_json.as_protobuf("logs", request), PROTOBUF)
        partial = ExportLogsServiceResponse.FromString(answer.content).partial_success
        assert (partial.rejected_log_records, partial.error_message) == (2, partial_success["errorMessage"])
        page = await client.get("/metrics")
        (family,) = (f for f in text_string_to_metric_families(page.text) if f.name == "pyrometer_otlp_records")
        counts = {(one.labels["signal"], one.labels["outcome"]): one.value for one in family.samples}
        assert counts == {("logs", "taken"): 2, ("logs", "wrong time"): 2, ("logs", "wrong value"): 2}

    assert len(in_store(tmp_path, talk)["step_window"]) == 1


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"nonsense", JSON, 400, "The body of 8 bytes is not an OTLP export request of logs in JSON."),
        (b"nonsense", PROTOBUF, 400, "in protobuf."),
        (b"nonsense", JSON | GZIP, 400, "is not gzip"),
        (b"[" * 100_000, JSON, 400, "is not an OTLP export request"),
        (gzip.compress(bytes(MAX_BYTES + 1)), JSON | GZIP, 413, "more than 64 MiB unpacked"),
        (bytes(MAX_PACKED_BYTES + 1), PROTOBUF, 413, "larger than 16 MiB"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "Content-Type 'text/plain' is neither"),
        (b"{}", JSON | {"Content-Encoding": "zstd"}, 415, "Content-Encoding 'zstd' is neither gzip nor identity."),
    ],
)
def test_rejected_body_gets_status_and_reason(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    async def talk(server: Services, client: httpx.AsyncClient) -> None:
        answer = await send(client, "logs", body, headers)
        assert answer.status_code == status
        assert words in answer.text
        if headers["Content-Type"] == "application/x-protobuf":
            from opentelemetry.proto.common.v1.common_pb2 import KeyValue  # as google.rpc.Status, 2 is a message

            assert answer.headers["Content-Type"] == "application/x-protobuf"
            assert answer.content[:1] == KeyValue(value={}).SerializeToString()[:1]
        else:
            assert words in answer.json()["message"]

    assert in_store(tmp_path, talk)["run"] == []


def test_sending_requires_the_ingest_permission(tmp_path: Path) -> None:
    async def talk(server: Services, client: httpx.AsyncClient) -> None:
        secrets = {role: Tokens(tmp_path).create(role, role, 0) for role in ("ingest", "viewer", "admin")}
        for signal in SIGNALS:
            assert (await send(client, signal, b"{}", JSON)).status_code == 401
            for role, status in (("viewer", 403), ("ingest", 200), ("admin", 200)):
                headers = JSON | {"Authorization": f"Bearer {secrets[role]}"}
                assert (await send(client, signal, b"{}", headers)).status_code == status
            assert (await client.get(f"/v1/{signal}")).status_code == 405

    in_store(tmp_path, talk)


def test_acknowledged_records_survive_a_crash_once(tmp_path: Path) -> None:
    parts = cpu_run.story(T0)
    bodies = [(signal, body) for part in parts for signal, body in otlp_json.bodies([part]).items()]

    async def whole(server: Services, client: httpx.AsyncClient) -> None:
        for signal, body in bodies:
            assert (await send(client, signal, body, JSON)).status_code == 200

    async def torn(server: Services, client: httpx.AsyncClient) -> None:
        for number, (signal, body) in enumerate(bodies[:7]):
            assert (await send(client, signal, body, JSON)).status_code == 200
            if number == 3:
                server.otlp._inbox.drop = lambda paths: None  # it dies after it has stored, before it has dropped
                await server.otlp.store(everything=True)

    async def rest(server: Services, client: httpx.AsyncClient) -> None:
        for signal, body in bodies[7:]:
            assert (await send(client, signal, body, JSON)).status_code == 200

    once = in_store(tmp_path / "once", whole)
    in_store(tmp_path / "torn", torn, crash=True)
    assert len(list((tmp_path / "torn" / "inbox" / "otlp").iterdir())) == 7
    again = in_store(tmp_path / "torn", rest)
    for kind in ("step_window", "span", "batch", "metric", "event"):
        assert again[kind] == once[kind]
    assert not list((tmp_path / "torn" / "inbox" / "otlp").iterdir())


def test_concurrent_bodies_share_a_file_and_survive_a_crash(tmp_path: Path) -> None:
    """An unreadable body is reported to its sender only."""
    bodies = [
        otlp_json.bodies(cpu_run.story(T0)[:1])["logs"],
        *(b for b in otlp_json.bodies(cpu_run.story(T0)).values()),
    ]

    async def alone(server: Services, client: httpx.AsyncClient) -> None:
        for body in bodies[1:]:
            assert (await send(client, SIGNALS[bodies.index(body) - 1], body, JSON)).status_code == 200

    async def together(server: Services, client: httpx.AsyncClient) -> None:
        sent = [("logs", bodies[0]), *zip(SIGNALS, bodies[1:], strict=True), ("logs", b"no JSON")]
        answers = await asyncio.gather(*(send(client, signal, body, JSON) for signal, body in sent))
        assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 400]

    once = in_store(tmp_path / "once", alone)
    in_store(tmp_path / "torn", together, crash=True)
    inbox = tmp_path / "torn" / "inbox" / "otlp"
    assert 1 <= len(list(inbox.iterdir())) < 4  # the first one alone, those that came meanwhile together
    again = in_store(tmp_path / "torn", nothing)
    for kind in ("step_window", "span", "batch", "metric", "event"):
        assert again[kind] == once[kind]
    assert not list(inbox.iterdir())


def test_server_stores_bodies_that_a_run_left_in_its_folder(tmp_path: Path) -> None:
    """There, and only there, a rank without a GPU has a device of its own."""

    async def talk(server: Services, client: httpx.AsyncClient) -> None:
        for signal, body in otlp_json.bodies(
            [(cpu_run.identity("sent", 0, T0, run="sent"), [otlp_json.window(T0, 0)])]
        ).items():
            assert (await send(client, signal, body, JSON)).status_code == 200
        for number, part in enumerate(cpu_run.story(T0)):
            otlp_json.put_in_inbox(tmp_path, [part], f"{number:020d}-1")
            await server.otlp.store()
        assert not list((tmp_path / "inbox" / "otlp").iterdir())
        answer = (await client.get("/api/v1/why", params={"all": "1"})).json()
        assert answer["total"]["gpu_ms"] == sum(cpu_run.RANK_MS.values())
        assert len((await client.get("/api/v1/runs")).json()["rows"]) == 2

    stored = in_store(tmp_path, talk)
    assert {row.split("'")[1].split(":")[2] for row in stored["slot"]} == {cpu_run.FIRST, cpu_run.SECOND}


def test_both_inboxes_work_side_by_side(tmp_path: Path) -> None:
    """Bodies of a Prometheus are in the parent folder."""

    async def talk(server: Services, client: httpx.AsyncClient) -> None:
        for signal, body in otlp_json.bodies(cpu_run.story(T0)[:1]).items():
            assert (await send(client, signal, body, JSON)).status_code == 200

    in_store(tmp_path, talk, crash=True)
    (tmp_path / "inbox" / "00000000000000000001.tmp").write_bytes(b"half of a bo")
    assert len(in_store(tmp_path, nothing)["run"]) == 1
    assert [path.name for path in (tmp_path / "inbox").iterdir()] == ["otlp"]


def test_gpu_gauges_become_one_sample_per_device_and_time(tmp_path: Path) -> None:
    """A collector may cut them anyhow, and brings them in any order."""
    gpu = {"gpu_uuid": "GPU-1", "gpu_index": 2, "gpu_model": "NVIDIA H100 80GB HBM3"}
    values = {"DCGM_FI_DEV_GPU_UTIL": 90, "DCGM_FI_DEV_POWER_USAGE": 400, "DCGM_FI_PROF_SM_ACTIVE": 0.5}
    pieces = [
        ({"host": "node-a"}, [("gpu", {"time_ms": T0 + 10_000 * at, **gpu, name: value})])
        for name, value in values.items()
        for at in (1, 0)
    ]

    async def talk(server: Services, client: httpx.AsyncClient) -> None:
        for piece in pieces:
            for signal, body in otlp_json.bodies([piece]).items():
                assert (await send(client, signal, body, JSON)).status_code == 200
            await server.otlp.store()  # nothing is stored while the rest may still arrive
        assert len(list((tmp_path / "inbox" / "otlp").iterdir())) == len(pieces)

    stored = in_store(tmp_path, talk, **{"node-a": "uid-a"})
    assert len(stored["gpu_sample"]) == 2
    assert all("'uid-a', 2, -1, 900, 500" in row for row in stored["gpu_sample"])
    assert len(stored["slot"]) == 1


class TestRecordsOfPods:
    """Records of pods wait until Kubernetes reports the pod, but not forever."""

    WHO = cpu_run.identity("l", 0, T0, run=None, device="cuda", gpu_uuid="GPU-1", pod_uid="p1", local_rank=1)

    def body(self) -> bytes:
        who = {key: value for key, value in self.WHO.items() if value is not None}
        (body,) = otlp_json.bodies(
            [(who, [otlp_json.window(T0, 0), ("event", {"time_ms": T0, "kind": "compiled"})])]
        ).values()
        return body

    def test_records_wait_for_their_pod(self, tmp_path: Path) -> None:
        async def talk(server: Services, client: httpx.AsyncClient) -> None:
            server.otlp._steps._waits_for_pods = True
            assert (await send(client, "logs", self.body(), JSON)).status_code == 200
            await server.otlp.store()
            assert server.otlp._waiting == 2
            holds = [Allocation(T0, "p1", "n1", index, T0, None, 1) for index in (4, 6)]
            workload = Workload(T0, "prod", "w1", "Job", "ml", "train")
            server.core.store.append(
                [Pod(T0, "prod", "p1", "ml", "train-0", "Running", "w1", node_uid="n1"), workload, *holds]
            )
            await server.otlp.store()
            assert server.otlp._waiting == 0

        stored = in_store(tmp_path, talk)
        assert "'w1', 1, 0, 'n1', 6, 'p1'" in stored["step_window"][0]
        assert "'prod'" in stored["run"][0]
        assert len(stored["allocation"]) == 2

    def test_stopped_server_leaves_waiting_records_to_the_next(self, tmp_path: Path) -> None:
        async def talk(server: Services, client: httpx.AsyncClient) -> None:
            server.otlp._steps._waits_for_pods = True
            assert (await send(client, "logs", self.body(), JSON)).status_code == 200

        assert in_store(tmp_path, talk)["run"] == []
        assert len(list((tmp_path / "inbox" / "otlp").iterdir())) == 1
        assert len(in_store(tmp_path, nothing)["run"]) == 1

    def test_records_of_an_unknown_pod_are_stored_after_the_wait(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def talk(server: Services, client: httpx.AsyncClient) -> None:
            server.otlp._steps._waits_for_pods = True
            assert (await send(client, "logs", self.body(), JSON)).status_code == 200
            await server.otlp.store()
            assert server.otlp._waiting == 2
            monkeypatch.setattr(step_store, "POD_WAIT_S", 0.0)
            await server.otlp.store()
            assert server.otlp._waiting == 0

        assert "'l', 1, 0, 'host/laptop', 1, 'run:l:0'" in in_store(tmp_path, talk)["step_window"][0]


class TestTooMuch:
    def test_busy_store_does_not_delay_senders(self, tmp_path: Path) -> None:
        async def talk(server: Services, client: httpx.AsyncClient) -> None:
            async with server.core.lock:
                for signal, body in otlp_json.bodies(cpu_run.story(T0)).items():
                    assert (await send(client, signal, body, JSON)).status_code == 200

        assert len(in_store(tmp_path, talk)["run"]) == 4

    @pytest.mark.parametrize("headers", [JSON, PROTOBUF])
    def test_full_queue_answers_503(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
    ) -> None:
        monkeypatch.setattr(otlp_receiver, "MAX_WAITING", 10)
        request = otlp_json.requests(cpu_run.story(T0))["logs"]
        body = json.dumps(request).encode() if headers is JSON else otlp_json.as_protobuf("logs", request)

        async def talk(server: Services, client: httpx.AsyncClient) -> None:
            async with server.core.lock:
                assert (await send(client, "logs", body, headers)).status_code == 200
                refused = await send(client, "logs", body, headers)
                assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
                assert b"More is waiting to be stored than should" in refused.content
            await server.otlp.store()
            assert (await send(client, "logs", body, headers)).status_code == 200

        assert len(in_store(tmp_path, talk)["run"]) == 4

    def test_unwritable_disk_answers_503(self, tmp_path: Path) -> None:
        async def talk(server: Services, client: httpx.AsyncClient) -> None:
            (tmp_path / "inbox").write_text("in the way")
            body = otlp_json.bodies(cpu_run.story(T0))["logs"]
            assert (await send(client, "logs", body, JSON)).status_code == 503
            (tmp_path / "inbox").unlink()
            assert (await send(client, "logs", body, JSON)).status_code == 200

        assert len(in_store(tmp_path, talk)["run"]) == 4

    def test_unstorable_bodies_stay_on_disk(self, tmp_path: Path) -> None:
        async def talk() -> None:
            async with server_and_client(store) as (server, client):
                body = otlp_json.bodies(cpu_run.story(T0))["logs"]
                assert (await send(client, "logs", body, JSON)).status_code == 200
                store.close()
                with pytest.raises(duckdb.Error):
                    await server.otlp.store()

        with Store(tmp_path, create=True) as store:
            asyncio.run(talk())
        assert len(list((tmp_path / "inbox" / "otlp").iterdir())) == 1
        assert len(in_store(tmp_path, nothing)["run"]) == 4
        assert not list((tmp_path / "inbox" / "otlp").iterdir())


@pytest.mark.heavy
def test_real_otlp_exporters_send_to_a_real_server(tmp_path: Path) -> None:
    """OpenTelemetry's SDK sends to a process of its own, which is stopped and leaves everything in the folder."""
    from opentelemetry._logs import LogRecord
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from tests.support.server_process import serving

    resource = Resource({"pyrometer.launch": "l", "pyrometer.run": "r", "pyrometer.device": "cpu", "host.name": "h"})
    with serving(tmp_path) as client:
        url = str(client.base_url).rstrip("/")
        spans = TracerProvider(resource=resource)
        spans.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
        with spans.get_tracer("t").start_as_current_span("step", attributes={"pyrometer.step": 7}):
            pass
        logs = LoggerProvider(resource=resource)
        packed = OTLPLogExporter(f"{url}/v1/logs", compression=Compression.Gzip)
        logs.add_log_record_processor(SimpleLogRecordProcessor(packed))
        window = {f"pyrometer.{key}": value for key, value in otlp_json.window(T0, 3)[1].items()}
        logs.get_logger("t").emit(LogRecord(timestamp=T0 * 1_000_000, event_name="pyrometer.window", attributes=window))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{url}/v1/metrics"), export_interval_millis=10**6)
        meter = MeterProvider([reader], resource=resource)
        meter.get_meter("t").create_gauge("loss").set(0.5, {"pyrometer.step": 7})
        for provider in (spans, logs, meter):
            provider.shutdown()
    with Store(tmp_path) as store:
        store.expose_all(KINDS)
        ask = store.connection.execute
        assert ask("SELECT run, attempt, rank, node_uid, slot_index FROM run").fetchall() == [
            ("r", 1, 0, "cpu:h:l:0", None)
        ]
        assert ask("SELECT name, step FROM span WHERE run = 'r'").fetchall() == [("step", 7)]
        assert ask("SELECT value, step FROM metric WHERE name = 'loss'").fetchall() == [(0.5, 7)]
        assert ask("SELECT first_step, steps, forward_ms FROM step_window").fetchall() == [(3, 10, 3000)]
    assert not list((tmp_path / "inbox" / "otlp").iterdir())
