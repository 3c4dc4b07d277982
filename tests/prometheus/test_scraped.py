"""A real Prometheus scrapes a real server: every query of every dashboard and rule returns data, and the totals match.

Counters grow without waiting: the records come in two halves, the ledger is updated after each, and a minute settles
ten minutes before the newest record.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import uvicorn
import yaml
from dashboards import DASHBOARDS

from pyrometer.model.records import Event, Metric, Node, Price, StepWindow
from pyrometer.model.settings import Settings
from pyrometer.serve.core import Core
from pyrometer.serve.main import build_services
from pyrometer.store import Store
from tests.support.clusters import START_MS, all_ranks, at, cluster, event, job, run, samples, shifted
from tests.support.kube_server import free_port
from tests.support.otlp_json import bodies
from tests.support.prometheus_servers import prometheus
from tests.support.remote_write_bodies import body_of

pytestmark = pytest.mark.heavy

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"
MINUTES = 170
HALF = 140  # when the first half of the records has ended
AGO_MIN = 20  # how long ago the night ended: the ledger is behind
GPUS = 2 * 8
WITHOUT_KUBERNETES = {'min by (resource) (pyrometer_watch_synced{instance=~"$instance"})'}
# The server is up and accounting, and has no sources.
QUIET = {"PyrometerDown", "PyrometerNotAccounting", "PyrometerSourcesMissing"}


def night() -> list[Any]:
    """Eight machines of two GPUs: a job that trains, stops saving and fails, one that spins, a forgotten
    notebook, two machines without telemetry, one that is cordoned, and one that is free."""
    h100 = {"gpu_model": "NVIDIA H100 80GB HBM3"}
    nodes = [row._replace(**h100) for row in cluster(hours=3, nodes=8) if isinstance(row, Node)]
    nodes = [row._replace(schedulable=row.node_uid != "n6", time_ms=min(row.time_ms, at(MINUTES))) for row in nodes]
    speed = {
        "step_p50_us": 590_000,
        "step_max_us": 700_000,
        "step_lengths": (590_000, 99, 700_000, 1),
        "samples": 3_200,
        "tokens": 6_400,
        "memory_peak_mib": 9_000,
    }
    held = [
        row._replace(node_uid={"spin": "n2", "note": "n3"}.get(name, "n4")) if hasattr(row, "node_uid") else row
        for name, pods in (("spin", 1), ("note", 1))
        for row in job(name, pods=pods)
    ]
    dark = [
        row._replace(node_uid={"n0": "n4", "n1": "n5"}[row.node_uid]) if hasattr(row, "node_uid") else row
        for row in job("dark")
    ]
    return [
        Price(START_MS, 1_000_000_000, START_MS),
        *nodes,
        *job(),
        *held,
        *dark,
        *run(framework="torch"),
        *(Event(at(minute), "watched", cluster="test") for minute in range(MINUTES)),
        *all_ranks(0, MINUTES, flops=60 * 250 * 10**12, **speed),
        *(Metric(at(minute), "run", 1, 0, "loss", 3 - minute / 100, minute, "min") for minute in range(MINUTES)),
        event("checkpoint_saved", 1, 0, step=100),
        event("stuck", MINUTES - 2, 1),
        event("nonfinite_loss", 168, 0),
        *(
            row
            for gpu in (0, 1)
            for row in (
                *samples("n2", gpu, 0, MINUTES, gpu_util_permille=1000, sm_active_permille=0, power_w=100),
                *samples("n3", gpu, 0, MINUTES, gpu_util_permille=0, sm_active_permille=0, power_w=100),
            )
        ),
    ]


def arrival_ms(row: Any) -> int:
    """A window is sent when it has ended."""
    return int(row.to_ms if isinstance(row, StepWindow) else row.time_ms)


class Running:
    """A server like that of `pyrometer serve`, which updates its ledger when the test calls it."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._began = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._began.wait(30)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        with Store(self._folder, create=True) as store:
            self.server = build_services(Core(store, Settings()), open_to_all=True)
            config = uvicorn.Config(self.server.application(), port=self.port, log_config=None, access_log=False)
            self._http = uvicorn.Server(config)
            self._began.set()
            await self._http.serve()

    def add(self, records: list[Any]) -> None:
        async def append() -> None:
            async with self.server.core.lock:
                await asyncio.to_thread(self.server.core.store.append, records)

        asyncio.run_coroutine_threadsafe(append(), self._loop).result(60)

    def keep_books(self) -> None:
        for work in (self.server.accounting.update, self.server.findings.look):
            asyncio.run_coroutine_threadsafe(work(), self._loop).result(60)

    def close(self) -> None:
        self._http.should_exit = True
        self._thread.join(30)


class PrometheusClient:
    """Queries a Prometheus."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=30)

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, **parameters: str) -> Any:
        reply = self._client.get(f"/api/v1/{path}", params=parameters).json()
        assert reply["status"] == "success", reply
        return reply["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return found

    def value(self, expr: str) -> float:
        (one,) = self.query(expr)
        return float(one["value"][1])

    def until(self, true: Callable[[], Any], what: str) -> None:
        """Waits for an answer: Prometheus scrapes and evaluates on its own schedule."""
        deadline = time.monotonic() + 30
        while not true():
            assert time.monotonic() < deadline, what
            time.sleep(0.1)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, PrometheusClient]]:
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus: apt-get install prometheus")
    folder = tmp_path_factory.mktemp("scraped")
    end_ms = time.time_ns() // 1_000_000 // 60_000 * 60_000 - AGO_MIN * 60_000
    records = shifted(night(), end_ms - at(MINUTES))
    half_ms = end_ms - (MINUTES - HALF) * 60_000
    rules = folder / "rules.yaml"
    rules.write_text(RULES.read_text().replace("interval: 1m", "interval: 1s"))
    running = Running(folder / "data")
    config = f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs: [{{job_name: pyrometer, static_configs: [{{targets: ["127.0.0.1:{running.port}"]}}]}}]
"""
    running.add([row for row in records if arrival_ms(row) <= half_ms])
    running.keep_books()
    server = prometheus(folder / "prometheus", config=config)
    client = PrometheusClient(server.url)
    try:
        client.until(lambda: client.query("pyrometer_build_info"), "it was never scraped")
        running.add([row for row in records if arrival_ms(row) > half_ms])
        running.keep_books()  # shows what is new, without its first minutes
        _send(running, end_ms)
        client.until(lambda: client.query("pyrometer_gpu_seconds_total"), "counters were not scraped")
        running.keep_books()
        wrong = [event("nonfinite_loss", HALF - 5, 0), event("finite_loss", HALF - 2, 0)]
        running.add(shifted(wrong, end_ms - at(MINUTES)))  # late evidence on minutes that have been counted
        running.keep_books()
        client.until(
            lambda: client.query("rate(pyrometer_restated_gpu_seconds_total[1m])"), "corrections were not scraped"
        )
        yield running, client
    finally:
        client.close()
        server.close()
        running.close()


def _send(running: Running, end_ms: int) -> None:
    """Sends a metric of a training process, and a sample that is refused."""
    identity = {"host": "h", "pid": 1, "launch": "l", "rank": 0, "ranks": 1, "run": "elsewhere"}
    loss_record = ("metric", {"time_ms": end_ms - 1_000, "name": "loss", "value": 1.0, "step": 1})
    form = {"Content-Type": "application/json"}
    for signal, body in bodies([(identity, [loss_record])]).items():
        assert httpx.post(f"{running.url}/v1/{signal}", content=body, headers=form).status_code == 200
    written = body_of([({"__name__": "other_total", "job": "x"}, [(end_ms, 1.0)])])
    form = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    assert httpx.post(f"{running.url}/api/v1/write", content=written, headers=form).status_code == 204


def expressions() -> list[str]:
    """The queries of the dashboards, including those of variables."""
    found = []
    for make in DASHBOARDS.values():
        dashboard = make()
        found += [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return sorted(set(found))


def chosen(expr: str) -> str:
    """The query that Grafana sends when everything is selected."""
    for name in ("instance", "team", "experiment", "run", "metric"):
        expr = expr.replace(f'"${name}"', '".*"')
    expr = expr.replace("$__range", "10m")
    assert "$" not in expr
    return expr


def test_every_dashboard_query_returns_data(scraped: tuple[Running, PrometheusClient]) -> None:
    _, client = scraped
    queries = [expr for expr in expressions() if expr not in WITHOUT_KUBERNETES]
    assert len(queries) > 40
    silent = [expr for expr in queries if not client.query(chosen(expr))]
    assert not silent


def test_every_dashboard_variable_has_values(scraped: tuple[Running, PrometheusClient]) -> None:
    _, client = scraped
    for make in DASHBOARDS.values():
        for variable in make()["templating"]["list"][1:]:
            metric, _, label = (
                variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rpartition(", ")
            )
            values = client.get(f"label/{label}/values", **{"match[]": chosen(metric)})
            assert values, variable["name"]


def test_every_rule_is_evaluated_and_alerts_fire(scraped: tuple[Running, PrometheusClient]) -> None:
    _, client = scraped

    def rules() -> dict[str, dict[str, Any]]:
        return {rule["name"]: rule for group in client.get("rules")["groups"] for rule in group["rules"]}

    def noticed() -> bool:
        return all(rule.get("state") != "inactive" for name, rule in rules().items() if name not in QUIET)

    groups = yaml.safe_load(RULES.read_text())["groups"]
    assert set(rules()) == {rule.get("alert") or rule["record"] for group in groups for rule in group["rules"]}
    client.until(noticed, json.dumps({name: rule.get("state") for name, rule in rules().items()}))
    for name, rule in rules().items():
        assert rule["health"] == "ok", rule
        assert rule.get("state") in ({"inactive"} if name in QUIET else {"pending", "firing", None}), name
        if rule["type"] == "recording":
            assert client.query(name), name


def test_counters_equal_the_ledger(scraped: tuple[Running, PrometheusClient]) -> None:
    running, client = scraped
    counted = client.value("sum(pyrometer_gpu_seconds_total)")
    through_s = client.value("pyrometer_exported_through_timestamp_seconds")
    end_s = client.value("pyrometer_ledger_end_timestamp_seconds")
    assert through_s == end_s - 600
    assert counted == GPUS * (MINUTES - HALF) * 60
    window = {"since": _iso(through_s - (MINUTES - HALF) * 60), "until": _iso(through_s)}
    total = httpx.get(f"{running.url}/api/v1/cost", params=window, timeout=30).json()["total"]
    assert counted * 1000 == total["gpu_ms"]
    assert client.value("sum(pyrometer_cost_usd_total)") == pytest.approx(total["usd_micro"] / 1e6, abs=0.01)


def _iso(time_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))
