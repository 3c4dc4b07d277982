"""A cluster of many GPUs, as a server meets it: an API server, exporters and training processes, over real sockets.

For `edge.py`, in a lean process of its own: every text is made once, and only numbers in it are replaced. Nodes
have eight GPUs. Most of them train, in jobs of sixteen nodes whose ranks send OTLP; one in fifty has pods that come
and go. An exporter is known by its address: 127.1.0.0/16 is one machine on Linux.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from scrape import METRICS  # noqa: E402 - in this folder
from watch import pod  # noqa: E402

from tests.support import otlp_json  # noqa: E402 - the tests'

GPUS_A_NODE = 8
NODES_A_JOB = 16
SHORT_NODES = 50  # one node in this many has short-lived pods
TEAMS = 40
CHANGES_A_GPU_S = 0.003  # "a busy cluster changes a few hundred pods a second"
STARTS = 25  # of this many changes, one ends a pod and one begins another; the others change nothing that matters
AT_ONCE = 250  # bodies that are on their way: a server takes 256, and a node's sender would try again
DAY = "2026-11-01T"


class Size(NamedTuple):
    """How large the cluster is, and how often its exporters are asked and its ranks speak."""

    gpus: int
    gpus_a_pod: int = GPUS_A_NODE
    scrape_ms: int = 15_000
    window_ms: int = 10_000

    @property
    def nodes(self) -> int:
        return -(-self.gpus // GPUS_A_NODE)

    @property
    def training(self) -> int:
        """The nodes that train; those behind them have pods that come and go."""
        return self.nodes - max(self.nodes // SHORT_NODES, 1)

    @property
    def pods_a_node(self) -> int:
        return GPUS_A_NODE // self.gpus_a_pod

    @property
    def jobs(self) -> int:
        return -(-self.training // NODES_A_JOB)


class Clock(NamedTuple):
    """The cluster's: it was `cluster_ms` when this machine's was `real_ms`, and runs `speed` times as fast."""

    real_ms: int
    cluster_ms: int
    speed: float

    def now_ms(self) -> int:
        return self.cluster_ms + int((time.time_ns() // 1_000_000 - self.real_ms) * self.speed)


def team_of(node: int) -> int:
    return node // NODES_A_JOB % TEAMS


def uuid_of(node: Any, gpu: int) -> str:
    return f"GPU-{node}-7953-256e-8f33-{gpu:012d}"


# -- exporters --------------------------------------------------------------------------------------------------------


class Exporters:
    """dcgm-exporters of all nodes. A round has one text, in which the node's number is put."""

    def __init__(self, size: Size, clock: Clock) -> None:
        self.size, self.clock = size, clock
        self.round = -1
        self.texts: tuple[bytes, bytes] = (b"", b"")  # of a node that trains, and of another
        self.answers = [0] * size.nodes
        self.closed = False

    def answer(self, node: int) -> bytes:
        if (number := self.clock.now_ms() // self.size.scrape_ms) != self.round:
            self.round, self.texts = number, (self._text(number, True), self._text(number, False))
        text = self.texts[node >= self.size.training]
        text = text.replace(b"@NODE@", b"%05d" % node).replace(b"@TEAM@", b"%02d" % team_of(node))
        self.answers[node] += 1
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        return head % len(text) + text

    def _text(self, number: int, trains: bool) -> bytes:
        changing = {
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": str(4_742_776_312 + number % 1_000_000 * 10_000_000),
            "DCGM_FI_DEV_POWER_USAGE": f"{600 + number % 97}.365000" if trains else "71.25",
            "DCGM_FI_DEV_GPU_TEMP": str(40 + number % 13),
            "DCGM_FI_PROF_SM_ACTIVE": f"0.8{number % 97:02d}002" if trains else "0.000000",
            "DCGM_FI_DEV_GPU_UTIL": "93" if trains else "0",
        }
        lines = []
        for name, value in METRICS.items():
            lines += [f"# HELP {name} as the exporter explains it.", f"# TYPE {name} gauge"]
            for gpu in range(GPUS_A_NODE):
                user = ""
                if trains:
                    user = (
                        f',container="pytorch",namespace="team-@TEAM@",pod="train-@NODE@-{gpu // self.size.gpus_a_pod}"'
                    )
                lines.append(
                    f'{name}{{gpu="{gpu}",UUID="{uuid_of("@NODE@", gpu)}",pci_bus_id="00000000:{gpu:02d}:00.0",'
                    f'device="nvidia{gpu}",modelName="NVIDIA H200",hostname="node-@NODE@",'
                    f'DCGM_FI_DRIVER_VERSION="580.105.08"{user}}} {changing.get(name, value)}'
                )
        return ("\n".join(lines) + "\n").encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            _, _, high, low = writer.get_extra_info("sockname")[0].split(".")
            answer = b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"
            writer.write(answer if self.closed else self.answer(int(high) * 256 + int(low)))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


# -- the API server ---------------------------------------------------------------------------------------------------


def _node(number: int) -> str:
    count = f'{{"nvidia.com/gpu": "{GPUS_A_NODE}", "cpu": "192"}}'
    return (
        f'{{"metadata": {{"name": "node-{number:05d}", "uid": "node-uid-{number:05d}", "resourceVersion": "1", '
        f'"creationTimestamp": "{DAY}10:00:00Z", "labels": {{"nvidia.com/gpu.product": "NVIDIA-H200"}}}}, '
        f'"status": {{"capacity": {count}, "allocatable": {count}, '
        '"conditions": [{"type": "Ready", "status": "True"}]}}'
    )


class Stream:
    """What changed of a kind, for whoever watches it: the newest one alone, from the version that it names on."""

    MAX_UNREAD, MAX_KEPT = 256, 20_000

    def __init__(self) -> None:
        self._lines: deque[tuple[int, bytes]] = deque(maxlen=self.MAX_KEPT)
        self._unread = self._watch = 0
        self._moved = asyncio.Condition()

    async def add(self, version: int, line: bytes) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self._unread < self.MAX_UNREAD)
            self._lines.append((version, line))
            self._unread += 1
            self._moved.notify_all()

    async def after(self, since: int) -> AsyncIterator[bytes]:
        self._watch = watch = self._watch + 1
        self._unread = sum(version > since for version, _ in self._lines)
        while True:
            async with self._moved:
                self._moved.notify_all()
                await self._moved.wait_for(lambda: self._unread or watch != self._watch)
                if watch != self._watch:
                    return
                line = self._lines[-self._unread][1]
                self._unread -= 1
            yield line


class ApiServer:
    """Lists nodes, jobs and pods, and streams what changes of them. Everything is rendered on request."""

    def __init__(self, size: Size, clock: Clock, exporter_port: int) -> None:
        self.size, self.clock, self.exporter_port = size, clock, exporter_port
        self.started = self.ended = self.sent = 0
        self.version = 1
        self.streams: dict[str, Stream] = {}
        self._pod = json.dumps(self._template()).replace("%", "%%").replace("@GPUS@", str(size.gpus_a_pod))
        for name in ("POD", "UID", "TEAM", "JOB", "NODE", "PHASE", "STATE", "VERSION"):
            self._pod = self._pod.replace(f"@{name}@", f"%({name})s").replace(f'"%({name})s{{}}"', f"%({name})s")
        self._short: dict[int, int] = {}  # node → number of the pod that it has now

    def _template(self) -> dict[str, Any]:
        """A pod as `watch.py` has it, 3.7 kB, with marks where pods differ."""
        made = pod(0, 1)
        meta, spec, status = made["metadata"], made["spec"], made["status"]
        meta |= {"name": "@POD@", "namespace": "team-@TEAM@", "uid": "@UID@", "resourceVersion": "@VERSION@"}
        meta["labels"] |= {"training.kubeflow.org/job-name": "@JOB@", "experiment": "exp-@TEAM@"}
        meta["ownerReferences"][0] |= {"name": "@JOB@", "uid": "uid-@JOB@"}
        spec["nodeName"] = "node-@NODE@"
        spec["containers"][0]["resources"] = {
            "requests": {"nvidia.com/gpu": "@GPUS@"},
            "limits": {"nvidia.com/gpu": "@GPUS@"},
        }
        status["phase"] = "@PHASE@"
        status["containerStatuses"][0]["state"] = "@STATE@{}"
        return made

    def pod(self, node: int, name: str, job: str, phase: str = "Running", state: str = "") -> str:
        state = state or f'{{"running": {{"startedAt": "{DAY}10:01:00Z"}}}}'
        team = team_of(node)
        return self._pod % {
            "POD": name,
            "UID": f"uid-{name}",
            "TEAM": f"{team:02d}",
            "JOB": job,
            "NODE": f"{node:05d}",
            "PHASE": phase,
            "STATE": state,
            "VERSION": self.version,
        }

    def training_pod(self, number: int) -> str:
        node, part = divmod(number, self.size.pods_a_node)
        return self.pod(node, f"train-{node:05d}-{part}", f"job-{node // NODES_A_JOB}")

    def owner(self, name: str, team: int) -> str:
        return (
            f'{{"metadata": {{"name": "{name}", "namespace": "team-{team:02d}", "uid": "uid-{name}", '
            f'"resourceVersion": "1", "creationTimestamp": "{DAY}10:00:00Z", "labels": {{"team": "t{team % 12}"}}}}}}'
        )

    def exporter(self, node: int) -> str:
        """The pod of an exporter. Its address says which."""
        return json.dumps(
            {
                "metadata": {
                    "name": f"dcgm-{node:05d}",
                    "namespace": "gpu-operator",
                    "uid": f"uid-dcgm-{node:05d}",
                    "resourceVersion": "1",
                    "labels": {"app": "nvidia-dcgm-exporter"},
                },
                "spec": {
                    "nodeName": f"node-{node:05d}",
                    "containers": [{"name": "e", "ports": [{"name": "metrics", "containerPort": self.exporter_port}]}],
                },
                "status": {"phase": "Running", "podIP": f"127.1.{node // 256}.{node % 256}"},
            }
        )

    def listed(self, path: str) -> tuple[int, Any] | None:
        """How many there are, and how each is written."""
        return {
            "/api/v1/nodes": (self.size.nodes, _node),
            "/api/v1/pods": (self.size.training * self.size.pods_a_node, self.training_pod),
            "/api/v1/namespaces": (0, None),
            "/api/v1/events": (0, None),
            "/apis/kubeflow.org/v1/pytorchjobs": (
                self.size.jobs,
                lambda n: self.owner(f"job-{n}", team_of(n * NODES_A_JOB)),
            ),
        }.get(path)

    def get(self, path: str, query: dict[str, list[str]]) -> str | None:
        if path == "/apis/kubeflow.org":
            return '{"preferredVersion": {"version": "v1"}}'
        kinds = {"/api/v1": ("Node", "Namespace", "Pod", "Event"), "/apis/kubeflow.org/v1": ("PyTorchJob",)}.get(path)
        if kinds:
            named = [{"name": kind.lower() + "s", "kind": kind, "verbs": ["list", "watch"]} for kind in kinds]
            return json.dumps({"resources": named})
        if "/pytorchjobs/" in path:
            return self.owner(path.rpartition("/")[2], int(path.split("/")[5].removeprefix("team-")))
        if (found := self.listed(path)) is None:
            return None
        count, write = found
        begin, limit = int(query.get("continue", ["0"])[0]), int(query.get("limit", ["500"])[0])
        more = f', "continue": "{begin + limit}"' if begin + limit < count else ""
        items = ", ".join(write(number) for number in range(begin, min(begin + limit, count)))
        return f'{{"metadata": {{"resourceVersion": "1"{more}}}, "items": [{items}]}}'

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                target = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
                parts = urlsplit(target)
                query = parse_qs(parts.query)
                if "watch" in query:
                    await self._stream(parts.path, int(query["resourceVersion"][0]), writer)
                    return
                text = self.get(parts.path, query)
                status, body = ("200 OK", text) if text is not None else ("404 Not Found", '{"message": "none"}')
                head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body.encode())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async def _stream(self, path: str, since: int, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        async for line in self.streams.setdefault(path, Stream()).after(since):
            writer.write(b"%x\r\n%s\r\n" % (len(line), line))
            await writer.drain()

    async def say(self, path: str, kind: str, write: Callable[[], str]) -> None:
        self.version += 1
        line = f'{{"type": "{kind}", "object": {write()}}}\n'.encode()
        await self.streams.setdefault(path, Stream()).add(self.version, line)

    async def change(self, number: int) -> None:
        """The next change: as a rule one that says nothing that matters here."""
        short = number // STARTS
        nodes = self.size.nodes - self.size.training
        node = self.size.training + short % nodes
        at = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(self.clock.now_ms() / 1000))}"
        if number % STARTS == 1 and node in self._short:
            name = f"short-{self._short.pop(node)}"
            over = f'{{"terminated": {{"startedAt": "{DAY}10:01:00Z", "finishedAt": "{at}", "exitCode": 0}}}}'
            await self.say("/api/v1/pods", "MODIFIED", lambda: self._starting(name, node, "Succeeded", over))
            self.ended += 1
        elif number % STARTS == 2:
            name = f"short-{short}"
            self._short[node] = short
            await self.say(
                "/apis/kubeflow.org/v1/pytorchjobs", "ADDED", lambda: self.owner(f"{name}-job", team_of(node))
            )
            await self.say("/api/v1/pods", "ADDED", lambda: self._starting(name, node))
            self.started += 1
        else:
            pods = self.size.training * self.size.pods_a_node
            await self.say("/api/v1/pods", "MODIFIED", lambda: self.training_pod(number * 7919 % pods))
        self.sent += 1

    def _starting(self, name: str, node: int, phase: str = "Running", state: str = "") -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.clock.now_ms() / 1000))
        text = self.pod(node, name, f"{name}-job", phase, state or f'{{"running": {{"startedAt": "{at}"}}}}')
        text = text.replace(f'"{self.size.gpus_a_pod}"', f'"{GPUS_A_NODE}"')
        return text if phase != "Running" else text.replace(f"{DAY}10:00:00Z", at)


# -- training processes -----------------------------------------------------------------------------------------------


class Senders:
    """One a node: the windows of its ranks in one body, on a connection of its own, until it is acknowledged."""

    def __init__(self, size: Size, clock: Clock, port: int) -> None:
        self.size, self.clock, self.port = size, clock, port
        self.windows = self.refused = self.bytes = 0
        self.took_s: list[float] = []
        parts = []
        for gpu in range(GPUS_A_NODE):
            identity = {
                "launch": "@JOB@" + "a" * 24,
                "experiment": "exp-@TEAM@",
                "rank": 900_000 + gpu,
                "ranks": 800_000,
                "local_rank": gpu % size.gpus_a_pod,
                "pid": 4000 + gpu,
                "host": "node-@NODE@",
                "started_ms": 700_000,
                "pod_uid": f"uid-train-@NODE@-{gpu // size.gpus_a_pod}",
                "device": "cuda",
                "gpu_uuid": uuid_of("@NODE@", gpu),
                "gpu_index": gpu % size.gpus_a_pod,
                "gpu_model": "NVIDIA H200",
                "framework": "torch",
            }
            kind, window = otlp_json.window(0, 600_000)
            parts.append((identity, [(kind, window | {"time_ms": 1, "to_ms": 500_000})]))
        text = json.dumps(otlp_json.requests(parts)["logs"]).replace("%", "%%")
        for gpu in range(GPUS_A_NODE):
            text = text.replace(f'"{900_000 + gpu}"', f'"%(RANK{gpu})d"').replace(
                f"/{900_000 + gpu}", f"/%(RANK{gpu})d"
            )
        numbers = {
            '"1000000"': "FROM_NS",
            '"500000"': "TO",
            '"600000"': "STEP",
            '"700000"': "STARTED",
            '"800000"': "RANKS",
        }
        for mark, name in numbers.items():
            text = text.replace(mark, f'"%({name})d"')
        for name in ("JOB", "TEAM", "NODE"):
            text = text.replace(f"@{name}@", f"%({name})s")
        self._body = text.encode()
        self._started_ms = clock.cluster_ms

    def body(self, node: int, number: int) -> bytes:
        job = node // NODES_A_JOB
        nodes = min(NODES_A_JOB, self.size.training - job * NODES_A_JOB)
        from_ms = self._started_ms + number * self.size.window_ms
        rank = node % NODES_A_JOB * GPUS_A_NODE
        values: dict[bytes, Any] = {b"RANK%d" % gpu: rank + gpu for gpu in range(GPUS_A_NODE)}
        values |= {
            b"JOB": b"%08d" % job,
            b"TEAM": b"%02d" % team_of(node),
            b"NODE": b"%05d" % node,
            b"STEP": number * 10,
            b"FROM_NS": from_ms * 1_000_000,
            b"TO": from_ms + self.size.window_ms,
            b"STARTED": self._started_ms,
            b"RANKS": nodes * GPUS_A_NODE,
        }
        return self._body % values

    async def send(self, node: int, number: int) -> None:
        """The windows of a node's ranks, until they are taken."""
        packer = zlib.compressobj(1, wbits=31)
        packed = packer.compress(self.body(node, number)) + packer.flush()
        head = (
            b"POST /v1/logs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(packed)
        )
        began_s = time.perf_counter()
        while b" 200 " not in (answer := await self._post(head + packed))[:20]:
            if b" 503 " not in answer[:20]:
                raise RuntimeError(answer[:300])
            self.refused += 1
            await asyncio.sleep(0.2)
        self.took_s.append(time.perf_counter() - began_s)
        self.windows += GPUS_A_NODE
        self.bytes += len(packed)

    async def _post(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            return await reader.read(-1)
        finally:
            writer.close()


# -- the whole cluster -------------------------------------------------------------------------------------------------


class World:
    """The cluster in a process of its own; `tell` says what it is to do next, and answers when that is done."""

    def __init__(self, size: Size, clock: Clock, server_port: int) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=_live, args=(size, clock, server_port, theirs), daemon=True)
        self._process.start()
        self.pid = self._process.pid
        self.api_port = self._ours.recv()

    def tell(self, what: str, *arguments: Any) -> dict[str, Any]:
        self._ours.send((what, arguments))
        answer: dict[str, Any] = self._ours.recv()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def end(self) -> None:
        self._process.terminate()
        self._process.join()


def _live(size: Size, clock: Clock, server_port: int, pipe: Any) -> None:
    asyncio.run(_World(size, clock, server_port, pipe).run())


class _World:
    def __init__(self, size: Size, clock: Clock, server_port: int, pipe: Any) -> None:
        self.size, self.clock, self.pipe = size, clock, pipe
        self.exporters = Exporters(size, clock)
        self.senders = Senders(size, clock, server_port)
        self.changes = self.body_number = 0

    async def run(self) -> None:
        exporting = await asyncio.start_server(self.exporters.serve, "0.0.0.0", 0, backlog=4096)
        self.api = ApiServer(self.size, self.clock, exporting.sockets[0].getsockname()[1])
        listening = await asyncio.start_server(self.api.serve, "127.0.0.1", 0)
        self.pipe.send(listening.sockets[0].getsockname()[1])
        while True:
            what, arguments = await asyncio.to_thread(self.pipe.recv)
            try:
                await getattr(self, what)(*arguments)
                self.pipe.send(self.counts())
            except Exception as error:
                self.pipe.send({"error": f"{what}: {error!r}"})

    def counts(self) -> dict[str, Any]:
        """All that was sent so far."""
        took = sorted(self.senders.took_s) or [0.0]
        return {
            "at_s": time.monotonic(),
            "cpu_s": time.process_time(),
            "scrapes": sum(self.exporters.answers),
            "least_scrapes": min(self.exporters.answers),
            "most_scrapes": max(self.exporters.answers),
            "windows": self.senders.windows,
            "refused": self.senders.refused,
            "packed_bytes": self.senders.bytes,
            "acknowledged_p50_s": took[len(took) // 2],
            "acknowledged_p99_s": took[int(len(took) * 0.99)],
            "changes": self.api.sent,
            "started": self.api.started,
            "ended": self.api.ended,
        }

    async def nothing(self) -> None:
        """Only counts."""

    async def close(self) -> None:
        """Exporters stop. What they have sent is still on its way."""
        self.exporters.closed = True
        await asyncio.sleep(0.5)

    async def announce(self, kind: str) -> None:
        """The pods of all exporters come, or go."""
        for node in range(self.size.nodes):
            await self.api.say("/api/v1/pods", kind, partial(self.api.exporter, node))

    async def feed(self, seconds: float, otlp: bool, watch: bool) -> None:
        """Sends for some seconds of this machine, no faster than the cluster's clock goes."""
        self.senders.took_s.clear()
        tasks = [asyncio.sleep(seconds)]
        if otlp:
            now = (self.clock.now_ms() - self.clock.cluster_ms) // self.size.window_ms * self.size.training
            self.body_number = max(self.body_number, now)  # values that were not sent in between are skipped
            pace = _Pace(seconds, self.size.training * 1000 / self.size.window_ms * self.clock.speed)
            tasks += [self._send(pace) for _ in range(AT_ONCE)]
        if watch:
            tasks.append(self._change(_Pace(seconds, self.size.gpus * CHANGES_A_GPU_S * self.clock.speed)))
        await asyncio.gather(*tasks)

    async def _send(self, pace: _Pace) -> None:
        while await pace.next():
            number, self.body_number = self.body_number, self.body_number + 1
            await self.senders.send(number % self.size.training, number // self.size.training)

    async def _change(self, pace: _Pace) -> None:
        while await pace.next():
            await self.api.change(self.changes)
            self.changes += 1


class _Pace:
    """A limited rate per second, for some seconds."""

    def __init__(self, seconds: float, a_second: float) -> None:
        self._began_s, self._seconds, self._a_second = time.monotonic(), seconds, a_second
        self._number = 0

    async def next(self) -> bool:
        """Waits for the next one's turn; whether there is one."""
        due_s = self._number / self._a_second
        self._number += 1
        early_s = due_s - (time.monotonic() - self._began_s)
        if early_s > 0:
            await asyncio.sleep(early_s)
        return max(due_s, time.monotonic() - self._began_s) < self._seconds
