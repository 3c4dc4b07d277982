"""The servers side by side: how each is started, given the day, and asked."""

from __future__ import annotations

import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import httpx2 as httpx
from day import DAY_MS

HERE = Path(__file__).parent
HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
ACTIVE = 'DCGM_FI_PROF_SM_ACTIVE{workload!=""}'
# Two passes, the least that answers it: readings of every workload (one per minute: GPU-hours × 60), and their sum.
COUNTED = f"sum by (workload) (count_over_time({ACTIVE}[%s]))"
SUMMED = f"sum by (workload) (sum_over_time({ACTIVE}[%s]))"
RULES = {"workload:readings:count1h": COUNTED % "1h", "workload:sm_active:sum1h": SUMMED % "1h"}
# All of these are UTC: the same question, and none of the answers that are kept.
ZONES = (
    "UTC",
    "Etc/UTC",
    "Etc/UCT",
    "Etc/GMT",
    "Etc/Zulu",
    "Etc/Universal",
    "Etc/Greenwich",
    "GMT",
    "Zulu",
    "Universal",
)


class Of(NamedTuple):
    """The amounts of one workload."""

    gpu_hours: float
    activity: float  # of a whole


Answer = dict[str, Of]  # by workload


class Measurement(NamedTuple):
    """An answer, and what it took of a server."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    answer: Answer


class Server:
    """A server process on loopback, in a folder of its own."""

    name = ""
    ready = "/-/ready"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.used_s = 0.0  # CPU of processes that have ended
        self.start()

    def command(self, port: int) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            port = int(listening.getsockname()[1])
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self.process = subprocess.Popen(self.command(port), stdout=log, stderr=log, cwd=HERE)
        unpacked = {"Accept-Encoding": "identity"}  # for all peers: otherwise gzip would be measured, too
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=900, headers=unpacked)
        deadline = time.monotonic() + 120
        while not self._answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"{self.name} does not start: see {self.folder}.log")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            return self.client.get(self.ready).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        _, _, used = os.wait4(self.process.pid, 0)
        self.process.returncode = 0
        self.used_s += used.ru_utime + used.ru_stime

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return self.used_s + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _peak_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024

    def write(self, body: bytes) -> None:
        while (answer := self.client.post("/api/v1/write", content=body, headers=HEADERS)).status_code in (429, 503):
            time.sleep(0.2)
        answer.raise_for_status()

    def settled(self) -> None:
        """Returns when everything that was sent is where it will stay."""

    def rests(self) -> None:
        """Returns when the server has nothing to do any more: no merges, no answers worked out ahead."""
        while True:
            before_s = self.cpu_s()
            time.sleep(2)
            if self.cpu_s() - before_s < 0.1:
                return

    def measure(self, ask) -> Measurement:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")  # the peak begins anew
        began_cpu_s, began_s = self.cpu_s(), time.perf_counter()
        answer = ask()
        wall_s = time.perf_counter() - began_s
        return Measurement(wall_s, self.cpu_s() - began_cpu_s, self._peak_mb(), answer)


class PromQL(Server):
    """A server that is asked in PromQL."""

    def instant(self, query: str, time_ms: int) -> dict[str, float]:
        parameters = {"query": query, "time": f"{time_ms / 1000:.3f}", "nocache": "1", "timeout": "600s"}
        answer = self.client.post("/api/v1/query", data=parameters)
        answer.raise_for_status()
        found = answer.json()["data"]["result"]
        return {series["metric"]["workload"]: float(series["value"][1]) for series in found}

    def question(self, from_ms: int, recorded: bool, number: int) -> Answer:
        queries = (COUNTED % "24h", SUMMED % "24h")
        if recorded:
            queries = tuple(f"sum by (workload) (sum_over_time({name}[24h]))" for name in RULES)
        counted, summed = (self.instant(query, from_ms + DAY_MS) for query in queries)
        assert counted.keys() == summed.keys()
        return {name: Of(count / 60, summed[name] / count) for name, count in counted.items()}

    def visible(self) -> None:
        """Waits until queries return what was sent."""


class Prometheus(PromQL):
    """Debian's Prometheus, which takes remote write."""

    name = "Prometheus"

    def command(self, port: int) -> list[str]:
        return [
            "prometheus",
            "--config.file=prometheus.yml",
            f"--storage.tsdb.path={self.folder}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--web.enable-remote-write-receiver",
            "--storage.tsdb.retention.time=10y",
            "--query.max-samples=500000000",
            "--query.timeout=10m",
            "--log.level=error",
        ]

    def bytes_a_sample(self) -> float:
        """Of its blocks: what is in the head and its log is not where it will stay."""
        import json

        size = samples = 0
        for meta in self.folder.glob("*/meta.json"):
            samples += json.loads(meta.read_text())["stats"]["numSamples"]
            size += sum(file.stat().st_size for file in meta.parent.rglob("*") if file.is_file())
        return size / samples if samples else float("nan")


class VictoriaMetrics(PromQL):
    """Debian's VictoriaMetrics, a single node."""

    name = "VictoriaMetrics"
    ready = "/health"

    def command(self, port: int) -> list[str]:
        return [
            "victoria-metrics",
            f"-storageDataPath={self.folder}",
            f"-httpListenAddr=127.0.0.1:{port}",
            "-retentionPeriod=10y",
            "-search.maxQueryDuration=10m",
            "-search.maxSamplesPerQuery=2000000000",
            "-search.maxUniqueTimeseries=2000000",
            "-search.disableCache",
            "-loggerLevel=ERROR",
        ]

    def visible(self) -> None:
        self.client.get("/internal/force_flush").raise_for_status()
        time.sleep(1.5)  # the index of new series takes a second longer

    def settled(self) -> None:
        self.visible()
        self.client.get("/internal/force_merge").raise_for_status()
        active = re.compile(r"^vm_active_(?:force_)?merges\S* ([1-9]\d*)", re.MULTILINE)
        time.sleep(2)
        while active.search(self.client.get("/metrics").text):
            time.sleep(0.5)

    def bytes_a_sample(self) -> float:
        text = self.client.get("/metrics").text
        rows = sum(float(n) for n in re.findall(r'^vm_rows\{type="storage/\S+"\} (\S+)', text, re.MULTILINE))
        size = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        return size / rows if rows else float("nan")


class Pyrometer(Server):
    """`pyrometer serve`, as it comes."""

    name = "Pyrometer"
    ready = "/healthz"

    def command(self, port: int) -> list[str]:
        return [sys.executable, "-m", "pyrometer", "serve", "--data", str(self.folder), "--listen", f"127.0.0.1:{port}"]

    def question(self, from_ms: int, recorded: bool, number: int) -> Answer:
        since, until = (datetime.fromtimestamp(ms / 1000, UTC).isoformat() for ms in (from_ms, from_ms + DAY_MS))
        parameters = {"by": "workload", "since": since, "until": until, "tz": ZONES[number % len(ZONES)]}
        answer = self.client.get("/api/v1/cost", params=parameters)
        answer.raise_for_status()
        rows = [row for row in answer.json()["rows"] if row["workload"] is not None]
        return {row["workload"]["name"]: Of(row["gpu_ms"] / 3_600_000, row["activity"]) for row in rows}


def spread(values: list[float]) -> dict[str, float]:
    """The middle, the least and the greatest of some repetitions."""
    return {"middle": statistics.median(values), "least": min(values), "most": max(values)}
