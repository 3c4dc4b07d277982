"""A night whose pods are gone, read back from a real Prometheus and a real VictoriaMetrics."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.cost import cost
from pyrometer.account.query.names import open_names
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.score import truth_window
from pyrometer.model.records import Node
from pyrometer.model.settings import Settings
from pyrometer.simulate.night import simulate
from pyrometer.store import Store
from tests.support.exposed_night import NightScrapes, newest
from tests.support.prometheus_servers import Server, prometheus, victoria

pytestmark = pytest.mark.heavy

EVERY_MS = 30_000  # between two scrapes


class Night(NamedTuple):
    """A simulated night: its folder, its time range, and the GPU time of experiments and pods."""

    folder: Path
    window: TimeRange
    experiments: dict[str, int]
    pods: dict[str, int]
    nodes: int


@pytest.fixture(scope="session")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    folder = tmp_path_factory.mktemp("night") / "data"
    with Store(folder, create=True) as store:
        window = truth_window(simulate(store, "gpu_only", seed=7, gpus=64, hours=3))
        build(store, Settings(), now_ms=window.to_ms)
        nodes = len(newest(store, Node, "node_uid"))
        return Night(folder, window, held(store, window, "experiment"), held(store, window, "pod"), nodes)


def held(store: Store, window: TimeRange, by: str) -> dict[str, int]:
    open_names(store)
    rows = cost(store, window, [by], zone=UTC)["rows"]
    return {row[by]: row["gpu_ms"] for row in rows if row[by] is not None}


@pytest.fixture(scope="session", params=["prometheus", "prometheus, labels renamed", "victoria-metrics"])
def remembering(
    request: pytest.FixtureRequest, night: Night, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    kind, _, renamed = request.param.partition(", ")
    if shutil.which(kind) is None:
        pytest.skip(f"needs {kind}: apt-get install {kind}")
    folder = tmp_path_factory.mktemp("remembers")
    with Store(night.folder) as store:
        past = NightScrapes(store, *night.window, every_ms=EVERY_MS, honor_labels=not renamed).lines()
        server = prometheus(folder, past) if kind == "prometheus" else victoria(folder, past)
    yield server
    server.close()


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYROMETER_")}
    command = [sys.executable, "-m", "pyrometer", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def run_why(url: str, night: Night, *more: str) -> subprocess.CompletedProcess[str]:
    since, until = map(_iso, night.window)
    return _run("why", "--prometheus", url, "--since", since, "--until", until, *more)


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def test_why_from_history_is_exact_to_one_scrape(remembering: Server, night: Night, tmp_path: Path) -> None:
    result = run_why(remembering.url, night, "-o", "json", "--data", str(tmp_path / "read"))
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    assert answer["evidence"]["gpu"] > 0.9
    with Store(tmp_path / "read") as store:
        pods, experiments = held(store, night.window, "pod"), held(store, night.window, "experiment")
        store.expose_all(["allocation"])
        store.expose_all(["node_sample"])
        loads = store.connection.execute(
            "SELECT DISTINCT cpu_busy_permille, disk_busy_permille FROM node_sample"
        ).fetchall()
        machines = store.connection.execute("SELECT count(DISTINCT node_uid), count(*) FROM node_sample").fetchone()
        sources = store.connection.execute("SELECT DISTINCT source FROM allocation").fetchall()
    assert set(pods) == set(night.pods)
    assert set(experiments) == set(night.experiments)
    for name, true_ms in night.pods.items():
        assert abs(pods[name] - true_ms) <= 8 * EVERY_MS, name
    assert ("dcgm",) in sources
    assert loads == [(250, 1000)]
    assert machines == (night.nodes, pytest.approx(180 * night.nodes, abs=2 * night.nodes))


def test_doctor_lists_available_and_missing_series(remembering: Server) -> None:
    result = _run("doctor", "--no-kube", "--prometheus", remembering.url)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"Prometheus at {remembering.url}")
    # the night has ended: Prometheus has no data of the last hour
    assert "only allocations are known" in result.stdout
    assert "whether a disk, the CPU or the network held a job up" in result.stdout


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1", "Error: http://127.0.0.1:1 does not answer: "),
        ("nowhere", "Error: 'nowhere' is not the URL of a Prometheus. Use one like http://127.0.0.1:9090."),
    ],
)
def test_error_names_an_invalid_prometheus_address(url: str, message: str) -> None:
    for arguments in (["why"], ["doctor", "--no-kube"]):
        failed = _run(*arguments, "--prometheus", url)
        assert failed.returncode == 1
        assert failed.stderr.startswith(message)


def test_prometheus_without_gpu_series_is_an_error(tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus: apt-get install prometheus")
    server = prometheus(tmp_path)
    failed = _run("why", "--prometheus", server.url)
    server.close()
    assert failed.returncode == 1
    assert "has no GPU metrics in that time range" in failed.stderr


def test_second_read_fetches_only_missing_time(remembering: Server, night: Night, tmp_path: Path) -> None:
    first = run_why(remembering.url, night, "-o", "json", "--data", str(tmp_path))
    with Store(tmp_path) as store:
        assert json.loads(store.meta(f"read_from {remembering.url}") or "") == [list(night.window)]
    second = run_why(remembering.url, night, "-o", "json", "--data", str(tmp_path))
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["total"] == json.loads(first.stdout)["total"]
    assert json.loads(second.stdout)["states"] == json.loads(first.stdout)["states"]
