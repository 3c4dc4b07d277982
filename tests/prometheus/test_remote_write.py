"""A real Prometheus scrapes GPU exporters and writes to a real server: nothing is lost, split or changed."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyrometer.account.build.ledger import build
from pyrometer.collect.gpu.dcgm import Dcgm, measure_of, slot_address_of
from pyrometer.collect.gpu.scrape import Scrapes, ScrapeTarget, gpu_exporters
from pyrometer.collect.prometheus.api import Prometheus, Series
from pyrometer.collect.prometheus.source import GPU_METRICS
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Allocation, Node, Pod
from pyrometer.model.settings import Settings
from pyrometer.model.units import SHARE_WHOLE
from pyrometer.questions.tokens import Tokens
from pyrometer.store import Store
from tests.support.exporter_texts import Gpu, text_of
from tests.support.prometheus_servers import prometheus
from tests.support.server_process import serving

pytestmark = pytest.mark.heavy

SCRAPES = 20  # a second each: longer than the server waits for pieces
NODES = ("node-a", "node-b", "node-c")
VERSIONS = dict(zip(NODES, ("4.9", "3.x", "4.8 on DCGM 4.6"), strict=True))
TELEMETRY = ("gpu_sample", "slot", "event")


def gpus_of(node: str, scrape: int) -> list[Gpu]:
    """The metrics of a node. Power counts the scrapes. A pod starts, a kernel spins, counters vanish, a GPU breaks."""
    pod = "train-0" if scrape >= 3 else None
    spinning = {"gpu_util": 100, "sm_active": 0, "graphics": 0, "tensor": 0, "dram": 0}
    return [
        Gpu(0, node, power_w=500 + scrape, pod=pod),
        Gpu(1, node, power_w=100 + scrape, pod=pod, **spinning),
        Gpu(2, node, power_w=600 + scrape, **spinning),
        Gpu(3, node, power_w=400 + scrape, xid=79 if scrape >= 6 else 0, temp_c=None),
    ]


class Exporters:
    """The exporters of all nodes behind one port. Each client has its own path and sees the same first scrape."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        self._changed = threading.Condition()
        exporters = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                node = self.path.rpartition("/")[2]
                body = text_of(gpus_of(node, exporters.counted(self.path)), VERSIONS[node])
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def counted(self, path: str) -> int:
        with self._changed:
            self.counts[path] += 1
            self._changed.notify_all()
            return self.counts[path] - 1

    def wait_for(self, who: str, scrapes: int) -> None:
        """Waits until all nodes were scraped this often."""
        with self._changed:
            paths = [f"/{who}/{node}" for node in NODES]
            assert self._changed.wait_for(lambda: min(self.counts[path] for path in paths) >= scrapes, timeout=60)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def exporters() -> Iterator[Exporters]:
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus: apt-get install prometheus")
    started = Exporters()
    yield started
    started.close()


def config(exporters: Exporters, url: str, secret: str, *, honor_labels: bool) -> str:
    """Scrapes every second and sends small batches over three shards, which splits scrapes. One client has no token."""
    jobs = "".join(
        f"""
  - job_name: {node}
    metrics_path: /prometheus/{node}
    honor_labels: {str(honor_labels).lower()}
    static_configs:
      - targets: ["{exporters.address}"]
        labels: {{pod: dcgm-exporter-{node}, namespace: monitoring, container: exporter, service: dcgm-exporter}}
"""
        for node in NODES
    )
    return f"""
global: {{scrape_interval: 1s}}
scrape_configs: {jobs}
remote_write:
  - name: sender
    url: {url}/api/v1/write
    authorization: {{credentials: {secret}}}
    write_relabel_configs: [{{source_labels: [__name__], regex: DCGM_.*, action: keep}}]
    queue_config: {{min_shards: 3, max_samples_per_send: 25, batch_send_deadline: 1s}}
  - name: stranger
    url: {url}/api/v1/write
"""


class Outcome(NamedTuple):
    """Samples received by remote write up to a time, those that Prometheus stores, and those of direct scrapes."""

    until_ms: int
    sent: dict[str, list[tuple[Any, ...]]]
    remembered: list[Series]
    scraped: list[tuple[Any, ...]]
    taken: float
    refused: float


@pytest.fixture(params=[True, False], ids=["honor_labels", "labels renamed"])
def outcome(request: pytest.FixtureRequest, exporters: Exporters, tmp_path: Path) -> Outcome:
    folder = tmp_path / "data"
    with Store(folder, create=True):
        secret = Tokens(folder).create("prometheus", "ingest", 0)
        viewer = Tokens(folder).create("me", "viewer", 0)
    with serving(folder) as client:
        text = config(exporters, str(client.base_url).rstrip("/"), secret, honor_labels=request.param)
        server = prometheus(tmp_path / "prometheus", config=text)
        try:
            scraped = asyncio.run(scrape(exporters))
            exporters.wait_for("prometheus", SCRAPES)
            until_ms = time.time_ns() // 1_000_000
            exporters.wait_for("prometheus", SCRAPES + 2)  # what was scraped until then is in Prometheus' memory
            remembered = asyncio.run(raw(server.url, until_ms))
            refused = metric(httpx.get(f"{server.url}/metrics").text, "failed", remote_name="stranger")
        finally:
            server.close()  # it sends what it still has
        page = client.get("/metrics", headers={"Authorization": f"Bearer {viewer}"}).text
    with Store(folder) as store:
        return Outcome(
            until_ms, stored(store, until_ms), remembered, scraped, metric(page, "taken", outcome="taken"), refused
        )


async def scrape(exporters: Exporters) -> list[tuple[Any, ...]]:
    """The samples of Pyrometer's own scrapes."""
    targets = [ScrapeTarget(f"http://{exporters.address}/ours/{node}") for node in NODES]
    scrapes = Scrapes(lambda: targets, gpu_exporters(new_dcgm()), interval_s=1)
    taken: list[tuple[Any, ...]] = []
    deliveries = scrapes.deliveries()
    async for delivery in deliveries:
        taken += delivery.records
        if min(exporters.counts[f"/ours/{node}"] for node in NODES) > SCRAPES:
            break
    await deliveries.aclose()
    return taken


async def raw(url: str, until_ms: int) -> list[Series]:
    api = Prometheus(url)
    try:
        return await api.raw(GPU_METRICS, until_ms - 300_000, until_ms)
    finally:
        await api.close()


def new_dcgm() -> Dcgm:
    return Dcgm(lambda host: None, near_idle_power_w)


def metric(page: str, what: str, **labels: str) -> float:
    """One value of a metrics page."""
    name = {"failed": "prometheus_remote_storage_samples_failed_total"}.get(
        what, "pyrometer_remote_write_samples_total"
    )
    (value,) = (
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
    return float(value)


def stored(store: Store, until_ms: int) -> dict[str, list[tuple[Any, ...]]]:
    store.expose_all(TELEMETRY)
    return {
        kind: [
            SCHEMAS[kind].record(*row)
            for row in store.connection.execute(f"FROM {kind} WHERE time_ms <= {until_ms} ORDER BY ALL").fetchall()
        ]
        for kind in TELEMETRY
    }


def read_back(series: list[Series]) -> list[tuple[Any, ...]]:
    """The stored samples of Prometheus as records of the history reader."""
    measured = []
    for one in series:
        measure, place = measure_of(one.labels.pop("__name__")), slot_address_of(one.labels)
        assert measure is not None
        assert place is not None
        measured.append((measure, place, one.times_ms, one.values))
    return list(new_dcgm().take_series(measured).records)


def by_device(samples: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    """The values of each device, in order of time."""
    sequences: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for time_ms, *device_and_values in sorted(samples):
        sequences[tuple(device_and_values[:3])].append((time_ms, *device_and_values[3:]))
    return {device: [values[1:] for values in rows] for device, rows in sequences.items()}


def ledger(folder: Path, telemetry: Iterable[tuple[Any, ...]], around_ms: int) -> list[tuple[Any, ...]]:
    """The ledger of these samples if one pod has all GPUs of every node."""
    from_ms, to_ms = around_ms - 120_000, around_ms + 120_000
    objects: list[tuple[Any, ...]] = []
    for node in NODES:
        uid, pod = f"host/{node}", f"pod-{node}"
        objects += [Node(time_ms, "test", uid, node, 4, "NVIDIA H200") for time_ms in (from_ms, to_ms)]
        objects.append(
            Pod(from_ms, "test", pod, "ml", pod, "Running", node_uid=uid, scheduled_ms=from_ms, started_ms=from_ms)
        )
        objects += [Allocation(from_ms, pod, uid, index, from_ms, None, SHARE_WHOLE) for index in range(4)]
    with Store(folder, create=True) as store:
        store.append(objects, telemetry)
        build(store, Settings(), now_ms=to_ms)
        store.expose_all(["ledger_row"])
        return store.connection.execute("FROM ledger_row ORDER BY ALL").fetchall()


def test_remote_write_equals_scraping(outcome: Outcome, tmp_path: Path) -> None:
    remembered = read_back(outcome.remembered)
    sent = [record for records in outcome.sent.values() for record in records]
    assert len(outcome.sent["gpu_sample"]) >= SCRAPES * len(NODES) * 4
    assert len(outcome.sent["event"]) == len(NODES)  # the XIDs
    assert sorted(map(repr, sent)) == sorted(map(repr, remembered))

    ours = by_device(record for record in outcome.scraped if type(record).__name__ == "GpuSample")
    theirs = by_device(outcome.sent["gpu_sample"])
    assert set(ours) == set(theirs)
    for device, values in theirs.items():
        both = min(len(values), len(ours[device]))
        assert both >= SCRAPES
        assert values[:both] == ours[device][:both], device

    rows = ledger(tmp_path / "sent", sent, outcome.until_ms)
    assert {"active", "hang", "unhealthy"} <= {row[5] for row in rows}
    assert rows == ledger(tmp_path / "remembered", remembered, outcome.until_ms)

    assert outcome.taken >= len(outcome.sent["gpu_sample"]) * 11
    assert outcome.refused > 0
