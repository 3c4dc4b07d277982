"""The agent: what it reads, how often, what it says of what it does not know; and as a process."""

from __future__ import annotations

import gzip
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import pyrometer.agent.server as agent_module
from pyrometer.agent import xid_watch
from pyrometer.agent.nvml import Nvml
from pyrometer.agent.server import MAX_INTERVAL_S, Agent, AgentServer, ScheduledReading
from tests.support.kube_server import free_port
from tests.support.kubelet import claiming, container, kubelet, pod
from tests.support.metrics_page import samples
from tests.support.nvml_library import Answers

UID = "0f3c9c2e-4b7d-4f0a-9f65-6a1d8f5f7a10"
ID = "ab12cd34" * 8


@pytest.fixture
def agent(answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setattr(xid_watch, "WAIT_MS", 20)  # so that it ends soon
    answers.set(count=2)
    answers.add(1)
    made = Agent(Nvml(), every_s=1.0, pod_resources=tmp_path / "kubelet.sock", proc=tmp_path / "proc")
    yield made
    made.close()


def values_by_gpu(page: str, name: str) -> dict[str, float]:
    """Values of a metric by the GPU's number."""
    return {labels.get("gpu", ""): value for labels, value in samples(page).get(name, ())}


def labels(page: str, name: str) -> list[dict[str, str]]:
    return [labels for labels, _ in samples(page).get(name, ())]


# -- reading ----------------------------------------------------------------------------------------------------------


def test_agent_reads_all_gpus(agent: Agent, answers: Answers) -> None:
    agent.tick(0)
    assert values_by_gpu(agent.page(), "DCGM_FI_DEV_GPU_UTIL") == {"0": 93, "1": 93}
    assert values_by_gpu(agent.page(), "DCGM_FI_PROF_SM_ACTIVE") == {}
    answers.set(**{"1.util.gpu": 7, "1.energy": 6_000_000_000})
    agent.tick(1)
    page = agent.page()
    assert values_by_gpu(page, "DCGM_FI_DEV_GPU_UTIL") == {"0": 93, "1": 7}
    assert values_by_gpu(page, "DCGM_FI_PROF_SM_ACTIVE") == {"0": 0.82, "1": 0.82}
    assert values_by_gpu(page, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")["1"] == 6_000_000_000
    assert values_by_gpu(page, "DCGM_FI_DEV_XID_ERRORS") == {"0": 0, "1": 0}
    assert values_by_gpu(page, "pyrometer_gpu_lost") == {"0": 0, "1": 0}


def test_agent_keeps_series_and_xid_of_lost_gpu(agent: Agent, answers: Answers) -> None:
    agent.tick(0)
    reported = threading.Event()
    agent.xids._on_xid = lambda uuid, xid: reported.set()
    answers.lose(1)
    answers.set(**{"xid.1": "1 79"})
    assert reported.wait(10)
    agent.tick(1)
    page = agent.page()
    assert values_by_gpu(page, "pyrometer_gpu_lost") == {"0": 0, "1": 1}
    assert values_by_gpu(page, "DCGM_FI_DEV_XID_ERRORS") == {"0": 0, "1": 79}
    assert values_by_gpu(page, "DCGM_FI_DEV_GPU_UTIL") == {"0": 93}
    assert {one["UUID"] for one in labels(page, "pyrometer_gpu_lost")} == {"GPU-00000000", "GPU-00000001"}


def test_agent_omits_stale_values(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.tick(0)
    assert agent.well
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600, thread_time=time.thread_time)
    monkeypatch.setattr(agent_module, "time", later)
    assert "DCGM_FI_DEV_GPU_UTIL" not in agent.page()
    assert values_by_gpu(agent.page(), "pyrometer_gpu_lost") == {"0": 0, "1": 0}
    assert not agent.well
    agent.tick(3600)
    assert values_by_gpu(agent.page(), "DCGM_FI_DEV_GPU_UTIL") == {"0": 93, "1": 93}
    assert agent.well


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_cheap_reading_keeps_its_interval() -> None:
    taken = []
    reading = ScheduledReading("cheap", lambda: taken.append(1), every_s=1.0, share=0.01)
    for second in range(10):
        reading.run(second)
    assert len(taken) == 10


def test_expensive_reading_has_longer_interval() -> None:
    reading = ScheduledReading("dear", lambda: burn(0.02), every_s=1.0, share=0.002)
    reading.run(0)
    assert reading.interval_s == 1.0  # the first time says nothing
    reading.run(1)
    assert 10 <= reading.interval_s <= 30  # 20 ms are a five-hundredth of ten seconds
    due_s = reading.due_s
    reading.run(due_s - 0.5)
    assert reading.due_s == due_s


def test_reading_interval_is_at_most_a_minute() -> None:
    reading = ScheduledReading("terrible", lambda: burn(0.02), every_s=1.0, share=0.00001)
    reading.run(0)
    reading.run(1)
    assert reading.interval_s == MAX_INTERVAL_S


def test_reading_shares_sum_below_a_hundredth_of_a_core(agent: Agent) -> None:
    assert sum(reading.share for reading in agent.readings) < 0.01


# -- whose GPU it is --------------------------------------------------------------------------------------------------


def test_agent_labels_pods_while_kubelet_answers(agent: Agent, tmp_path: Path) -> None:
    pods = [
        pod("train-0", container("main", gpu=["GPU-00000000"], rdma=["mlx5_0"])),
        pod("a", container("x", **{"gpu.shared": ["GPU-00000001::0"]})),
        pod("b", claiming("x", "gpu-1")),
        pod("elsewhere", container("x", gpu=["GPU-we-do-not-see"])),
    ]
    with kubelet(tmp_path / "kubelet.sock", pods):
        agent.tick(0)
    page = agent.page()
    assert values_by_gpu(page, "pyrometer_agent_pod_resources_up") == {"": 1}
    assert {one["gpu"]: one.get("pod") for one in labels(page, "DCGM_FI_DEV_GPU_UTIL")} == {"0": "train-0", "1": None}
    held = {(one.get("UUID"), one["pod"], one["device_id"]) for one in labels(page, "pyrometer_gpu_allocation_info")}
    assert held == {
        ("GPU-00000000", "train-0", "GPU-00000000"),
        ("GPU-00000001", "a", "GPU-00000001::0"),
        ("GPU-00000001", "b", "gpu-1"),
        (None, "elsewhere", "GPU-we-do-not-see"),
    }
    agent.tick(60)  # the kubelet is gone
    page = agent.page()
    assert values_by_gpu(page, "pyrometer_agent_pod_resources_up") == {"": 0}
    assert all("pod" not in one for one in labels(page, "DCGM_FI_DEV_GPU_UTIL"))


def test_agent_reports_pods_of_processes(agent: Agent, answers: Answers, tmp_path: Path) -> None:
    for pid in (11, 12):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "cgroup").write_text(f"0::/../../kubepods/pod{UID}/{ID}\n")
    answers.set(**{"0.pids": "11 12 13"})  # 13 has ended since
    agent.tick(0)
    page = agent.page()
    (process,) = labels(page, "pyrometer_gpu_processes")
    assert (process["gpu"], process["pod_uid"], process["container_id"]) == ("0", UID, ID)
    assert values_by_gpu(page, "pyrometer_gpu_processes") == {"0": 2}


# -- over HTTP --------------------------------------------------------------------------------------------------------


@contextmanager
def served(agent: Agent) -> Iterator[str]:
    with AgentServer(("127.0.0.1", 0), agent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def get(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def test_server_gzips_page_on_request(agent: Agent) -> None:
    agent.tick(0)
    with served(agent) as url:
        status, headers, plain = get(f"{url}/metrics")
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "Content-Encoding" not in headers
        _, headers, zipped = get(f"{url}/metrics?x=1", **{"Accept-Encoding": "deflate, gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert len(zipped) < len(plain) / 5
    assert values_by_gpu(gzip.decompress(zipped).decode(), "DCGM_FI_DEV_GPU_UTIL") == {"0": 93, "1": 93}


def test_agent_is_unhealthy_while_driver_hangs(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(agent) as url:
        assert get(f"{url}/healthz")[0] == 200
        monkeypatch.setattr(agent, "_ticked_s", time.monotonic() - 1000)
        status, _, body = get(f"{url}/healthz")
        assert status == 503
        assert b"A call into the driver hangs" in body
        assert get(f"{url}/")[0] == 404
        assert get(f"{url}/../etc/passwd")[0] == 404


@pytest.mark.heavy
def test_server_rejects_excess_requests(agent: Agent) -> None:
    agent.tick(0)
    with served(agent) as url:
        address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
        slow = [socket.create_connection(address) for _ in range(agent_module.MAX_REQUESTS)]
        for connection in slow:
            connection.sendall(b"GET /healthz HTTP/1.0\r\n")  # and then says no more
        with socket.create_connection(address) as refused:
            refused.settimeout(10)
            with suppress(ConnectionResetError):
                assert refused.recv(100) == b""
        for connection in slow:
            connection.sendall(b"\r\n")
            connection.settimeout(10)
            assert connection.recv(100).startswith(b"HTTP/1.0 200")
            connection.close()


# -- as a process -----------------------------------------------------------------------------------------------------


@contextmanager
def running(answers: Answers, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "pyrometer", "agent", "--listen", address, *more],
        env=answers.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        with process.stderr:
            assert any(f"Listening on http://{address}/metrics" in line for line in process.stderr)
            yield process, f"http://{address}"
    finally:
        process.kill()
        process.wait()


def test_agent_command_serves_until_terminated(answers: Answers, tmp_path: Path) -> None:
    with running(answers, "--every", "100ms", "--pod-resources", str(tmp_path / "none")) as (process, url):
        status, _, body = get(f"{url}/metrics")
        assert status == 200
        assert values_by_gpu(body.decode(), "DCGM_FI_DEV_POWER_USAGE") == {"0": 674.312}
        assert values_by_gpu(body.decode(), "pyrometer_agent_pod_resources_up") == {"": 0}
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0


LIGHT = """
import json, os, signal, sys, threading, urllib.request
def scrape():
    urllib.request.urlopen("http://127.0.0.1:%d/metrics").read()
    os.kill(os.getpid(), signal.SIGTERM)
sys.argv = ["pyrometer", "agent", "--listen", "127.0.0.1:%d"]
import pyrometer.agent.server as agent
tick = agent.Agent.tick
def ticked(self, now):
    tick(self, now)
    if not hasattr(self, "scraper"):
        self.scraper = threading.Timer(0.2, scrape); self.scraper.start()
agent.Agent.tick = ticked
from pyrometer.cli import main
try: main()
except SystemExit as end: print(json.dumps([end.code, sorted({name.split(".")[0] for name in sys.modules})]))
"""


@pytest.mark.heavy
def test_agent_command_imports_no_heavy_package(answers: Answers) -> None:
    port = free_port()
    found = subprocess.run(
        [sys.executable, "-c", LIGHT % (port, port)],
        env=answers.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    code, modules = json.loads(found.stdout)
    assert code == 0, found.stderr
    allowed = {"pyrometer", "pynvml", "click", "h2", "hpack", "hyperframe"}
    outside = {name for name in modules if name not in sys.stdlib_module_names} - {"__main__", "sitecustomize"}
    assert {name for name in outside if not name.startswith(("_", "distutils-"))} == allowed


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--listen", "9400"), 2, "--listen '9400' is not HOST:PORT"),
        (("--every", "0s"), 2, "--every '0s' is not a duration from 100ms to 5m"),
        (("--every", "soon"), 2, "--every 'soon' is not a duration"),
        (("--listen", "192.0.2.1:9400"), 1, "--listen 192.0.2.1:9400: Cannot assign requested address"),
    ],
)
def test_agent_command_error_is_one_sentence(
    answers: Answers, arguments: tuple[str, ...], code: int, message: str
) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "pyrometer", "agent", *arguments],
        env=answers.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == code
    assert message in found.stderr
    assert found.stderr.count("\n") == 1


def test_agent_command_without_driver_names_remedy(answers: Answers, tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "pyrometer", "agent"],
        env={**answers.environment, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "NVML cannot be opened" not in found.stderr:
        pytest.skip("this machine has a driver")
    assert found.returncode == 1
    assert "libnvidia-ml.so.1" in found.stderr
