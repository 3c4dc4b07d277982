"""The agent on a GPU node: reads its GPUs continuously and exposes metrics for a scraper.

It uses at most a hundredth of a core, whatever a call into the driver costs: every group of metrics has its share, and
groups that cost more are read less often. Counters and averages only arrive later. Values that are too old are omitted.
"""

from __future__ import annotations

import gzip
import logging
import os
import resource
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer import __version__
from pyrometer.agent.cgroups import ContainerCgroup, container_of
from pyrometer.agent.dcgm_text import CONTENT_TYPE, AgentInfo, DeviceReading, exposition
from pyrometer.agent.nvml import ACTIVITY, ENERGY, HEALTH, INSTANCE, Gpu, Nvml, Values
from pyrometer.agent.pod_resources import ContainerDevice, PodResourcesError, list_held
from pyrometer.agent.xid_watch import XidWatch

MAX_INTERVAL_S = 60.0  # however much a reading costs
STALLED_S = 60.0  # without a reading for this long, the agent is unhealthy
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-", "gpu.nvidia.com")  # of the device plugin, and the DRA driver
MAX_PIDS = 128  # of one device whose containers are looked up
MAX_CONTAINERS = 32  # of one device that are exposed
MAX_REQUESTS = 8  # at a time
REQUEST_S = 10.0


class ScheduledReading:
    """A group of metrics that is read regularly, but no more often than its share of a core allows."""

    def __init__(self, name: str, read: Callable[[], object], every_s: float, share: float) -> None:
        self.name = name
        self.read = read
        self.every_s = self.interval_s = every_s
        self.share = share
        self.due_s = 0.0
        self._warm = False  # the first reading also initializes libraries and devices, so its cost does not count

    def run(self, now_s: float) -> None:
        """Reads if it is time."""
        if now_s < self.due_s:
            return
        began_s = time.thread_time()
        self.read()
        cost_s = time.thread_time() - began_s
        if self._warm:
            self.interval_s = max(self.every_s, min(cost_s / self.share, MAX_INTERVAL_S))
        self._warm = True
        self.due_s = now_s + self.interval_s


class _Values(NamedTuple):
    """The values of a reading by device, and their time."""

    time_s: float
    values: Mapping[Gpu, Values]


class Agent:
    """The readings and their values. One thread reads. Any thread may request the metrics."""

    def __init__(self, nvml: Nvml, *, every_s: float, pod_resources: Path, proc: Path) -> None:
        self.nvml = nvml
        self.pod_resources = pod_resources
        self.proc = proc
        self.hostname = os.environ.get("NODE_NAME") or socket.gethostname()  # dcgm-exporter uses the same variable
        self.xids = XidWatch(nvml.gpus)
        self._every_s = every_s
        self._found: dict[str, _Values] = {}
        self._held: list[ContainerDevice] | None = []  # None: the kubelet does not answer
        self._processes: dict[Gpu, Counter[ContainerCgroup]] = {}
        self._ticked_s = time.monotonic()
        seldom_s = max(every_s, 10.0)
        # a hundredth of a core in total, including scrapes
        self.readings = [
            ScheduledReading("instances", nvml.list_instances, max(every_s, 30.0), 0.0005),
            ScheduledReading("activity", self._reader("activity", self._activity), every_s, 0.0030),
            ScheduledReading("profile", self._reader("profile", Gpu.profile), every_s, 0.0025),
            ScheduledReading("energy", self._reader("energy", lambda gpu: _of_gpu(gpu, ENERGY)), every_s, 0.0010),
            ScheduledReading("health", self._reader("health", lambda gpu: _of_gpu(gpu, HEALTH)), seldom_s, 0.0005),
            ScheduledReading("processes", self._read_processes, seldom_s, 0.0005),
            ScheduledReading("pod_resources", self._read_held, seldom_s, 0.0005),
        ]

    # -- reading ------------------------------------------------------------------------------------------------------

    def run(self, ended: threading.Event) -> None:
        """Reads until it is ended."""
        began_s, ticks = time.monotonic(), 0
        while not ended.is_set():
            self.tick(began_s + ticks * self._every_s)
            behind = int((time.monotonic() - began_s) / self._every_s)
            ticks = max(ticks, behind) + 1  # missed readings are not repeated
            ended.wait(began_s + ticks * self._every_s - time.monotonic())

    def tick(self, now_s: float) -> None:
        """Takes the readings that are due."""
        for reading in self.readings:
            reading.run(now_s)
        self._ticked_s = time.monotonic()

    def close(self) -> None:
        """Ends the watch for XIDs and shuts NVML down."""
        self.xids.close()
        self.nvml.close()

    def _reader(self, name: str, read: Callable[[Gpu], Values]) -> Callable[[], None]:
        def take() -> None:
            values = {gpu: read(gpu) for gpu in self.nvml.everything}
            self._found[name] = _Values(time.monotonic(), values)

        return take

    def _activity(self, gpu: Gpu) -> Values:
        return gpu.read(INSTANCE if gpu.parent else ACTIVITY)

    def _read_held(self) -> None:
        try:
            self._held = list_held(self.pod_resources)
        except PodResourcesError as error:
            if self._held is not None:
                logging.getLogger("pyrometer").warning("%s Metrics have no pod labels until it does.", error)
            self._held = None

    def _read_processes(self) -> None:
        found: dict[Gpu, Counter[ContainerCgroup]] = {}
        for gpu in self.nvml.everything:
            containers = (container_of(pid, self.proc) for pid in gpu.pids()[:MAX_PIDS])
            counted = Counter(container for container in containers if container is not None)
            found[gpu] = Counter(dict(counted.most_common(MAX_CONTAINERS)))
        self._processes = found

    # -- exposing -----------------------------------------------------------------------------------------------------

    @property
    def well(self) -> bool:
        """Whether it still reads. A driver may hang."""
        return time.monotonic() - self._ticked_s < max(STALLED_S, 3 * self._every_s)

    def page(self) -> str:
        """The response to a scrape."""
        held = self._held or []
        by_device: dict[str, list[ContainerDevice]] = {}
        for one in held:
            by_device.setdefault(one.device, []).append(one)
        devices = [self._shown(gpu, by_device) for gpu in self.nvml.everything]
        placed = {one for shown in devices for one in shown.held}
        unplaced = [one for one in held if one not in placed and one.resource.startswith(GPU_RESOURCES)]
        return exposition(devices, self._about(unplaced))

    def _shown(self, gpu: Gpu, held: Mapping[str, Sequence[ContainerDevice]]) -> DeviceReading:
        values: Values = {}
        for reading in self.readings:
            found = self._found.get(reading.name)
            if found and time.monotonic() - found.time_s < 3 * reading.interval_s + STALLED_S / 4:
                values.update(found.values.get(gpu, {}))
        if gpu.parent is None and gpu.device.uuid in self.xids.last:
            values["DCGM_FI_DEV_XID_ERRORS"] = self.xids.last[gpu.device.uuid]
        return DeviceReading(
            gpu.device,
            values,
            gpu.lost,
            [one for name in gpu.device.names for one in held.get(name, ())],
            self._processes.get(gpu, {}),
        )

    def _about(self, unplaced: Sequence[ContainerDevice]) -> AgentInfo:
        used = resource.getrusage(resource.RUSAGE_SELF)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return AgentInfo(
            hostname=self.hostname,
            version=__version__,
            driver=self.nvml.driver,
            pod_resources_up=self._held is not None,
            intervals_s={reading.name: reading.interval_s for reading in self.readings},
            cpu_s=used.ru_utime + used.ru_stime,
            resident_bytes=pages * resource.getpagesize(),
            unplaced=unplaced,
        )


def _of_gpu(gpu: Gpu, readers: Sequence[Callable[[Any], Values]]) -> Values:
    """Values that only a whole GPU has."""
    return {} if gpu.parent else gpu.read(readers)


class AgentServer(ThreadingHTTPServer):
    """`/metrics` and `/healthz`, a few requests at a time."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], agent: Agent) -> None:
        self.agent = agent
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Closes connections beyond the limit. A scraper tries again."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers one request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs errors, except when a scraper disconnected."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            logging.getLogger("pyrometer").exception("A request failed")


class _Handler(BaseHTTPRequestHandler):
    server: AgentServer
    timeout = REQUEST_S
    server_version = "pyrometer"
    sys_version = ""

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                self._answer(200, self.server.agent.page(), CONTENT_TYPE)
            case "/healthz" if self.server.agent.well:
                self._answer(200, "ok\n")
            case "/healthz":
                self._answer(503, f"The GPUs have not been read for {STALLED_S:.0f} s. A call into the driver hangs.\n")
            case _:
                self._answer(404, "Not found. Use /metrics or /healthz.\n")

    def _answer(self, status: int, text: str, content_type: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        self.send_response(status)
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, compresslevel=1, mtime=0)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Does not log requests, because scrapes come every few seconds."""
