"""GPU telemetry into a server's store: with Kubernetes, which says who is there, and without it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.collect.gpu.dcgm import Dcgm
from pyrometer.collect.gpu.device import DeviceUse
from pyrometer.collect.gpu.scrape import Scrapes, ScrapeTarget, gpu_exporters
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.model.records import Allocation, Pod, Slot
from pyrometer.model.settings import Settings
from pyrometer.serve.ingest.kubernetes_collector import stored_cluster
from pyrometer.serve.ingest.telemetry_ingest import LINGER_MS, HoldersFromLabels, TelemetryIngest
from pyrometer.store import Store
from tests.support.exporter_texts import Gpu, text_of

T0 = 1_794_600_000_000


@contextmanager
def exporter(text: Callable[[], str]) -> Iterator[str]:
    """A server that shows metrics, in a thread of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def use(pod: str, slot: int = 0, node: str = "host/node-a") -> DeviceUse:
    return DeviceUse(node, slot, -1, f"GPU-{slot}", "NVIDIA H200", None, "ml", pod, None, None)


def test_exporter_labels_alone_make_a_ledger(tmp_path: Path) -> None:
    gpus = [Gpu(index, pod="llama-worker-0") for index in range(2)] + [Gpu(2, gpu_util=0, sm_active=0, power_w=80)]

    async def scenario(store: Store) -> None:
        with exporter(lambda: text_of(gpus).decode()) as url:
            scrapes = Scrapes(
                lambda: [ScrapeTarget(url)], gpu_exporters(Dcgm(lambda host: None, near_idle_power_w)), interval_s=0.05
            )
            telemetry = TelemetryIngest(store, asyncio.Lock(), scrapes, HoldersFromLabels(Settings()))
            running = asyncio.create_task(telemetry.run())
            while telemetry.stored < 30:
                assert not running.done(), running.result()
                await asyncio.sleep(0.01)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    with Store(tmp_path, create=True) as store:
        asyncio.run(scenario(store))
        newest_ms = store.newest_ms(["gpu_sample"], 2**62)
        assert newest_ms is not None
        build(store, Settings(), now_ms=newest_ms)
        store.expose_all(["ledger_row", "pod", "workload", "allocation"])
        held = store.connection.execute(
            "SELECT slot_index, sum(ms) FILTER (WHERE pod_uid IS NOT NULL) > 0 FROM ledger_row GROUP BY 1 ORDER BY 1"
        ).fetchall()
        named = store.connection.execute("SELECT DISTINCT workload.kind, workload.name FROM workload").fetchall()
        sources = store.connection.execute("SELECT DISTINCT source FROM allocation").fetchall()
    assert [(slot, bool(is_held)) for slot, is_held in held] == [(0, True), (1, True), (2, False)]
    assert named == [("Pods", "llama")]
    assert sources == [("dcgm",)]


class TestHoldersFromLabels:
    def test_pod_lasts_while_its_label_is_reported(self) -> None:
        holders = HoldersFromLabels(Settings())
        records = holders.machines([_slot(index) for index in range(2)])
        for at_ms in range(T0, T0 + 600_000, 15_000):
            records += holders.learn({use("a-0")} | ({use("b-0", 1)} if at_ms < T0 + 120_000 else set()), at_ms)
        assert _holds(records) == {"a-0": [(T0, None)], "b-0": [(T0, T0 + 105_000)]}

    def test_pod_that_returns_under_its_name_is_new(self) -> None:
        holders = HoldersFromLabels(Settings())
        records = holders.machines([_slot(0)])
        back_ms = T0 + 2 * LINGER_MS
        for at_ms in [*range(T0, T0 + 60_000, 15_000), *range(T0 + 60_000, back_ms, 15_000), back_ms]:
            records += holders.learn({use("a-0")} if at_ms < T0 + 60_000 or at_ms == back_ms else set(), at_ms)
        assert _holds(records) == {"a-0": [(T0, T0 + 45_000), (back_ms, None)]}

    def test_pod_not_seen_after_restart_ends_at_its_last_sample(self, tmp_path: Path) -> None:
        before = HoldersFromLabels(Settings())
        with Store(tmp_path, create=True) as store:
            records = before.machines([_slot(0), _slot(1)])
            for at_ms in (T0, T0 + 15_000):
                records += before.learn({use("a-0"), use("b-0", 1)}, at_ms)
            store.append(records)
            after = HoldersFromLabels(Settings())
            resumed = after.resume(stored_cluster(store, "scraped", T0 + 600_000), T0 + 30_000)
            resumed += after.machines([_slot(0), _slot(1)])  # they are known
            resumed += after.learn({use("a-0")}, T0 + 600_000)
            store.append(resumed)
        assert not any(type(r).__name__ == "Node" for r in resumed)
        assert _holds([*records, *resumed]) == {
            "a-0": [(T0, T0 + 30_000), (T0 + 600_000, None)],
            "b-0": [(T0, T0 + 30_000)],
        }

    def test_label_missing_for_one_scrape_does_not_end_the_pod(self) -> None:
        holders = HoldersFromLabels(Settings())
        records = holders.machines([_slot(0)])
        for at_ms in range(T0, T0 + 2 * LINGER_MS, 15_000):
            records += holders.learn(set() if at_ms == T0 + 60_000 else {use("a-0")}, at_ms)
        kinds = Counter(type(r).__name__ for r in records)
        assert kinds["Allocation"] == 1

    def test_machine_grows_with_reported_devices(self) -> None:
        holders = HoldersFromLabels(Settings())
        written = holders.machines([_slot(0), _slot(3)])
        assert [node.gpu_count for node in written] == [1, 4]
        assert written[0].time_ms == T0
        assert written[-1].gpu_model == "NVIDIA H200"
        assert holders.machines([_slot(1)]) == []


def _holds(records: list[Any]) -> dict[str, list[tuple[int, int | None]]]:
    """The newest word on every hold, by the pod's name."""
    names = {r.pod_uid: r.name for r in records if isinstance(r, Pod)}
    newest = {(r.pod_uid, r.from_ms): r.to_ms for r in records if isinstance(r, Allocation)}
    found: dict[str, list[tuple[int, int | None]]] = {}
    for (uid, from_ms), to_ms in sorted(newest.items(), key=lambda item: item[0][1]):
        found.setdefault(names[uid], []).append((from_ms, to_ms))
    return found


def _slot(index: int) -> Slot:
    return Slot(T0, "host/node-a", index, f"GPU-{index}", "NVIDIA H200")


@pytest.mark.heavy
def test_server_scrapes_exporters_at_the_configured_interval(tmp_path: Path) -> None:
    from tests.support.server_process import serving

    answers, scraped_often = count(), threading.Event()

    def answer_of_gpu() -> str:
        if next(answers) == 3:
            scraped_often.set()
        return text_of([Gpu(0, pod="llama-0")]).decode()

    with (
        exporter(answer_of_gpu) as url,
        serving(
            tmp_path / "data",
            "--scrape",
            url,
            "--scrape",
            "http://127.0.0.1:1/metrics",
            PYROMETER_SCRAPE_INTERVAL_S="1",
        ) as client,
    ):
        while not (answer := client.get("/api/v1/cost", params={"by": "workload"})).is_success:
            assert answer.status_code == 409, answer.text  # the first scrape takes its time
        while not any("127.0.0.1:1" in text for text in client.get("/readyz").json()["shortcomings"]):
            pass
        assert scraped_often.wait(14)  # less than the usual interval
    with Store(tmp_path / "data") as store:
        store.expose_all(["gpu_sample"])
        (kept,) = store.connection.execute("SELECT count(*) FROM gpu_sample").fetchone() or (0,)
        assert kept > 1
