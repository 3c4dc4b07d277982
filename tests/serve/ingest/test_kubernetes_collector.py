"""A real collector in the middle, both ways: training → collector → Pyrometer, and Pyrometer → collector → a receiver.

The collector is Rotel, another implementation than OpenTelemetry's own, which no registry of packages has.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyrometer.export.otlp_push import PUSH_MARKS_KEY
from pyrometer.model.records import Span
from pyrometer.store import Store
from tests.support.kube_server import free_port
from tests.support.otlp_receiver import plain, receiving
from tests.support.server_process import serving
from tests.support.training_processes import environment, torchrun

DDP = Path(__file__).parents[3] / "examples" / "ddp" / "train.py"


@contextmanager
def collecting(folder: Path, to: str, *more: str) -> Iterator[str]:
    """A collector that sends on what it gets; it is ended by its own id."""
    found = importlib.util.find_spec("rotel")
    if found is None or found.origin is None:
        pytest.skip("needs rotel: `make test-all` installs it (extra `heavy`)")
    port = free_port()
    with (folder / "collector.log").open("w") as log:
        process = subprocess.Popen(
            [
                str(Path(found.origin).parent / "rotel-agent"),
                "start",
                "--otlp-http-endpoint",
                f"127.0.0.1:{port}",
                "--otlp-grpc-endpoint",
                f"127.0.0.1:{free_port()}",
                "--exporter",
                "otlp",
                "--otlp-exporter-endpoint",
                to,
                "--otlp-exporter-protocol",
                "http",
                "--pid-file",
                str(folder / "collector.pid"),
                *more,
            ],
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: is_open(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


def is_open(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/", timeout=1)
    except httpx.TransportError:
        return False
    return True


def until(holds: Any) -> None:
    """Waits for another process."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it did not happen within 30 s"
        time.sleep(0.1)


def taken(client: httpx.Client) -> Counter[str]:
    """Records that a server took, or did not, over OTLP."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name == "pyrometer_otlp_records_total":
                found[f"{sample.labels['signal']} {sample.labels['outcome']}"] += int(sample.value)
    return found


def kept(folder: Path) -> dict[str, list[Any]]:
    """What a run has left in a folder, without when it was: what two runs of the same program have in common."""
    with Store(folder) as store:
        store.expose_all(["run", "batch", "metric", "span", "step_window"])
        ask = store.connection.execute
        return {
            "run": ask(
                "SELECT run, rank, ranks, outcome, framework FROM run WHERE ended_ms IS NOT NULL "
                "GROUP BY ALL ORDER BY ALL"
            ).fetchall(),
            "batch": ask("SELECT rank, epoch, send_index, step, rows, dataset FROM batch ORDER BY ALL").fetchall(),
            "metric": ask("SELECT rank, name, step, round(value, 4) FROM metric ORDER BY ALL").fetchall(),
            "steps": ask("SELECT rank, sum(steps) FROM step_window GROUP BY ALL ORDER BY ALL").fetchall(),
            "doubling": ask(
                "SELECT rank, step FROM span WHERE name = 'step' AND step IN (1, 2, 4, 8, 16) GROUP BY ALL ORDER BY ALL"
            ).fetchall(),
        }


@pytest.mark.heavy
def test_run_sent_through_a_collector_is_unchanged(tmp_path):
    """The same program, sent straight and through a collector that re-encodes and adds attributes: the same records."""
    pytest.importorskip("torch", reason="make setup installs torch")
    command = [sys.executable, "-m", "pyrometer", "run", "--no-gpus", "--run", "it", "--server"]
    program = ["--", *torchrun(DDP, ranks=2)]
    with serving(tmp_path / "straight") as straight, serving(tmp_path / "through") as through:
        attributes = "k8s.cluster.name=lab,k8s.node.name=node-7"
        with collecting(tmp_path, str(through.base_url).rstrip("/"), "--otel-resource-attributes", attributes) as url:
            for to in (str(straight.base_url).rstrip("/"), url):
                done = subprocess.run(
                    [*command, to, *program],
                    env=environment(None),
                    capture_output=True,
                    text=True,
                    cwd=tmp_path,
                    check=False,
                    timeout=120,
                )
                assert done.returncode == 0, done.stderr
            until(lambda: taken(through)["logs taken"] >= taken(straight)["logs taken"])
            until(lambda: taken(through)["metrics taken"] >= taken(straight)["metrics taken"])
            until(lambda: taken(through)["traces taken"] >= 10)
        assert not [what for what in taken(through) if not what.endswith(" taken")]
    one, other = kept(tmp_path / "straight"), kept(tmp_path / "through")
    assert one == other
    assert one["run"] == [("it", 0, 2, "succeeded", None), ("it", 1, 2, "succeeded", None)]
    assert len(one["batch"]) == len(one["metric"]) == 96
    with Store(tmp_path / "through") as store:
        store.expose_all(["run"])
        nodes = store.connection.execute("SELECT DISTINCT node_uid FROM run").fetchall()
    assert all("node-7" in node for (node,) in nodes)  # as the collector says it


@pytest.mark.heavy
def test_pushed_telemetry_passes_through_a_collector(tmp_path):
    now_ms = time.time_ns() // 1_000_000
    spans = [
        Span(now_ms - 60_000 + step, f"{step:032x}", f"{step:016x}", "step", 900, "r", 1, 0, step)
        for step in range(1, 50)
    ]
    with Store(tmp_path / "data", create=True) as store:
        store.set_meta(PUSH_MARKS_KEY, json.dumps({"since_ms": now_ms - 90_000, "ranks": [], "runs": {}}))
        store.append(spans)
    with receiving() as receiver, collecting(tmp_path, receiver.url) as url:
        pushes = {"PYROMETER_OTLP_ENDPOINT": url, "PYROMETER_OTLP_INTERVAL_S": "5"}
        with serving(tmp_path / "data", **pushes) as client:
            receiver.wait_for(lambda: len(receiver.taken["/v1/metrics"]) > 1 and len(receiver.spans()) >= 49)
            page = client.get("/metrics").text
        pushed = {(metric.name, *sorted(plain(point.attributes).items())) for _, metric, point in receiver.points()}
        counters = [metric for _, metric, _ in receiver.points() if metric.name == "pyrometer_records_stored_total"]
        sent = Counter(span.span_id.hex() for _, span in receiver.spans())
    shown = {
        (sample.name, *sorted(sample.labels.items()))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert pushed == {key for key in shown if key in pushed}
    assert {key[0] for key in shown} - {key[0] for key in pushed} <= {"pyrometer_otlp_pushes_total"}
    assert all(metric.sum.is_monotonic and metric.sum.aggregation_temporality == 2 for metric in counters)
    assert sent == Counter(span.span_id for span in spans)
