"""Prometheus and VictoriaMetrics as processes, filled with a past."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx2 as httpx

from tests.support.exposed_night import Line
from tests.support.kube_server import free_port


class Server:
    """A process that answers like Prometheus."""

    def __init__(self, command: Callable[[int], list[str]], folder: Path, ready: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command, self._folder, self._ready = command(self.port), folder, ready
        self.start()

    def start(self) -> None:
        """Starts it, also again, at the same address."""
        log_path = self._folder / "log"
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._folder)
        for _ in range(300):
            if self.process.poll() is not None:
                raise RuntimeError(log_path.read_text()[-2000:])
            try:
                if httpx.get(self.url + self._ready).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)  # another program's process: polling is the only way
        raise RuntimeError("the server did not become ready within half a minute")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def prometheus(folder: Path, past: Iterable[Line] = (), config: str = "", *more: str) -> Server:
    """Prometheus, with blocks made from samples by its own tool."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(config or "global: {}\n")
    blocks = folder / "data"
    text = folder / "past.om"
    with text.open("w") as file:
        file.writelines(line.text for line in past)
        file.write("# EOF\n")
    if text.stat().st_size > 10:
        subprocess.run(
            ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(blocks)],
            check=True,
            capture_output=True,
        )
    text.unlink()
    return Server(
        lambda port: [
            "prometheus",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--storage.tsdb.path={blocks}",
            f"--config.file={folder / 'prometheus.yml'}",
            "--storage.tsdb.retention.time=10y",
            *more,
        ],
        folder,
        "/-/ready",
    )


def victoria(folder: Path, past: Iterable[Line]) -> Server:
    """VictoriaMetrics, filled through its import."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(
        lambda port: [
            "victoria-metrics",
            f"-httpListenAddr=127.0.0.1:{port}",
            f"-storageDataPath={folder / 'data'}",
            "-retentionPeriod=100y",
            "-search.maxUniqueTimeseries=1000000",
            "-search.latencyOffset=0s",
        ],
        folder,
        "/health",
    )
    batch: list[str] = []
    for line in past:
        head, _, _ = line.text.rpartition(" ")
        batch.append(f"{head} {line.time_ms}\n")
        if len(batch) == 100_000:
            _import(server, batch)
            batch = []
    _import(server, batch)
    httpx.get(f"{server.url}/internal/force_flush", timeout=30)
    return server


def _import(server: Server, batch: list[str]) -> None:
    httpx.post(f"{server.url}/api/v1/import/prometheus", content="".join(batch).encode(), timeout=60).raise_for_status()
