"""A real server under faults: the deliveries to it, those it acknowledged, and the contents of its folder afterwards.

The records of a small cluster (two nodes of two GPUs, one job of four ranks) are sent to a server over HTTP, like
Prometheus and training processes do. The sender keeps each delivery until it is acknowledged and sends it again.
Afterwards the folder is compared with its twin, which received the same without a fault: all rows and the ledger.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx

from pyrometer.account.build.ledger import build
from pyrometer.account.checks.check_list import problems
from pyrometer.account.closing.closed_months import problems as closed_month_problems
from pyrometer.model.records import Allocation, Node, Pod, Price, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE, SHARE_WHOLE
from pyrometer.store import Store
from tests.support import otlp_json
from tests.support.crashing_process import Faults, run
from tests.support.exporter_texts import Gpu
from tests.support.kube_server import free_port
from tests.support.remote_write_bodies import body_of, series_of

# Starting Python and importing the product would take most of the time, so one process does it and forks all others.
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")  # a process with threads cannot fork
FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(
    [
        "tests.support.crashing_process",
        "pyarrow",
        "pyrometer.cli.commands.serve",
        "pyrometer.cli.commands.check",
        "pyrometer.cli.commands.cost",
    ]
)
NO_FAULTS = Faults()

START_MS = (time.time_ns() // 10**6 // MS_PER_HOUR - 26) * MS_PER_HOUR  # in the past, so that it is sealed at once
HOSTS = ("node-a", "node-b")
LAUNCH = "c" * 32
DELIVERED_KINDS = ("gpu_sample", "step_window", "metric")  # the kinds by which deliveries are counted
FAST_CONSTANTS = {  # intervals of a server that tests need not wait for
    "pyrometer.serve.ingest.remote_write_receiver.SETTLE_S": 0.2,
    "pyrometer.serve.ingest.step_store.SETTLE_S": 0.2,
    "pyrometer.serve.ingest.remote_write_receiver.STORE_EVERY_S": 0.05,
    "pyrometer.serve.ingest.otlp_receiver.STORE_EVERY_S": 0.05,
    "pyrometer.serve.tasks.accounting.SEAL_EVERY_S": 0.05,
    "pyrometer.serve.main.ACCOUNT_EVERY_S": 0.1,
    "pyrometer.serve.runtime.REST_FACTOR": 0,
    "pyrometer.serve.main.LOOK_EVERY_S": 1.0,
    "pyrometer.serve.runtime.RESTART_S": 0.1,
}
REMOTE_WRITE = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}

Key = tuple[str, int, str, int]  # kind, time, node or run, slot or rank


class Delivery(NamedTuple):
    """One request, and the rows that it contains."""

    path: str
    headers: dict[str, str]
    body: bytes
    rows: frozenset[Key]


class Counts(NamedTuple):
    """The result of some faults. `lost` and `doubled` must be zero."""

    faults: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    unlike: int = 0  # folders whose rows or ledger differ from those of the twin
    wrong: int = 0  # problems that `pyrometer check` reports

    def plus(self, other: Counts) -> Counts:
        """The sum of both."""
        return Counts(*(one + another for one, another in zip(self, other, strict=True)))

    @property
    def is_clean(self) -> bool:
        """Nothing was lost, doubled or otherwise wrong."""
        return not any(self[2:])


# -- what is sent -----------------------------------------------------------------------------------------------------


def objects(hours: int = 2, start_ms: int = START_MS) -> list[Any]:
    """The records from Kubernetes, which are in the folder from the start."""
    records: list[Any] = [
        Price(start_ms, 2_500_000, start_ms - MS_PER_HOUR),
        Workload(start_ms, "test", "job", "PyTorchJob", "ml", "job", team="nlp", experiment="sft"),
    ]
    for host in HOSTS:
        uid, pod = f"host/{host}", f"pod-{host}"
        records += [
            Node(at_ms, "test", uid, host, 2, "NVIDIA H200") for at_ms in (start_ms, start_ms + hours * MS_PER_HOUR - 1)
        ]
        begun_ms = start_ms + 5 * MS_PER_MINUTE
        records.append(
            Pod(
                begun_ms,
                "test",
                pod,
                "ml",
                pod,
                "Running",
                workload_uid="job",
                node_uid=uid,
                scheduled_ms=begun_ms,
                started_ms=begun_ms,
            )
        )
        records += [Allocation(begun_ms, pod, uid, slot, begun_ms, None, SHARE_WHOLE) for slot in range(2)]
    return records


def scrape_deliveries(at_ms: int, number: int) -> list[Delivery]:
    """One scrape of both nodes by remote write, one request per node. All values differ."""
    found = []
    for host in HOSTS:
        gpus = [Gpu(slot, host=host, energy_mj=1_000_000.0 * (1 + number), power_w=300.0 + slot) for slot in range(2)]
        rows = frozenset(("gpu_sample", at_ms, f"host/{host}", slot) for slot in range(2))
        found.append(Delivery("/api/v1/write", REMOTE_WRITE, body_of(series_of(gpus, at_ms)), rows))
    return found


def rank_deliveries(from_ms: int, number: int, minutes: int = 10) -> list[Delivery]:
    """What the ranks send in some minutes: one window per minute and rank, and the loss of rank 0."""
    parts, rows = [], set()
    for rank in range(4):
        host = HOSTS[rank // 2]
        identity = {
            "run": "run",
            "launch": LAUNCH,
            "rank": rank,
            "ranks": 4,
            "local_rank": rank % 2,
            "pid": 100 + rank,
            "host": host,
            "started_ms": START_MS + 5 * MS_PER_MINUTE,
            "device": "cuda",
            "pod_uid": f"pod-{host}",
            "pod_name": f"pod-{host}",
            "namespace": "ml",
            "gpu_uuid": f"GPU-{host}-{rank % 2}",
        }
        messages: list[otlp_json.Message] = []
        if number == 0:
            messages.append(("run", {"time_ms": from_ms, "first_step_ms": from_ms}))
        for minute in range(minutes):
            at_ms, step = from_ms + minute * MS_PER_MINUTE, 100 * (number * minutes + minute)
            messages.append(otlp_json.window(at_ms, step, steps=100, lasts_ms=MS_PER_MINUTE))
            rows.add(("step_window", at_ms, "run", rank))
            if rank == 0:
                messages.append(("metric", {"time_ms": at_ms, "name": "loss", "value": 1.0 / (1 + step), "step": step}))
                rows.add(("metric", at_ms, "run", rank))
        parts.append((identity, messages))
    bodies = otlp_json.bodies(parts)
    kinds = {"logs": "step_window", "metrics": "metric"}
    return [
        Delivery(
            f"/v1/{signal}",
            {"Content-Type": "application/json"},
            body,
            frozenset(row for row in rows if row[0] == kinds[signal]),
        )
        for signal, body in bodies.items()
    ]


def deliveries(minutes: int = 120, every: int = 1, start_ms: int = START_MS) -> list[Delivery]:
    """All deliveries, in the order of time."""
    found: list[tuple[int, Delivery]] = []
    for number, minute in enumerate(range(0, minutes, every)):
        found += [(minute, one) for one in scrape_deliveries(start_ms + minute * MS_PER_MINUTE, number)]
    for number, minute in enumerate(range(10, minutes, 10)):
        found += [(minute, one) for one in rank_deliveries(start_ms + minute * MS_PER_MINUTE, number)]
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


class Sender:
    """Sends every delivery until it is acknowledged, and records the acknowledged rows."""

    def __init__(self, load: Iterable[Delivery]) -> None:
        self.left = list(load)
        self.acknowledged: set[Key] = set()
        self.answers: Counter[int] = Counter()

    def send(self, client: httpx.Client, most: int | None = None) -> bool:
        """Sends the remaining deliveries up to the first that fails. Returns whether none failed."""
        for one in self.left[:most]:
            try:
                answer = client.post(one.path, content=one.body, headers=one.headers)
            except httpx.TransportError:
                return False
            self.answers[answer.status_code] += 1
            if not answer.is_success:
                return False
            self.acknowledged |= one.rows
            self.left = self.left[1:]
        return True


def _run(arguments: list[str], faults: tuple[Any, ...], out: Connection, err: Connection) -> None:
    run(arguments, Faults(*faults), out.fileno(), err.fileno())


# -- the server -------------------------------------------------------------------------------------------------------


class Process:
    """A command of `pyrometer` in a process of its own, with faults."""

    def __init__(self, *arguments: str, faults: Faults = NO_FAULTS) -> None:
        self.lines: list[str] = []
        self.out = ""
        self._begun = threading.Event()  # it listens or has ended
        self._listens = False
        out, out_end = FORK_SERVER.Pipe(duplex=False)
        err, err_end = FORK_SERVER.Pipe(duplex=False)
        self.process = FORK_SERVER.Process(
            target=_run, args=(list(arguments), tuple(faults), out_end, err_end), daemon=True
        )
        self.process.start()
        out_end.close()
        err_end.close()
        self._readers = [
            threading.Thread(target=work, args=(end,), daemon=True)
            for work, end in ((self._read_log, err), (self._read_output, out))
        ]
        for reader in self._readers:
            reader.start()

    def _read_log(self, end: Connection) -> None:
        with end, os.fdopen(os.dup(end.fileno()), encoding="utf-8") as stream:
            for line in stream:
                self.lines.append(line)
                if "Listening on" in line:
                    self._listens = True
                    self._begun.set()
        self._begun.set()

    def _read_output(self, end: Connection) -> None:
        with end, os.fdopen(os.dup(end.fileno()), encoding="utf-8") as stream:
            self.out = stream.read()

    @property
    def listens(self) -> bool:
        """Whether it listens. Waits until it does or has ended."""
        assert self._begun.wait(60), "it neither listens nor ends"
        return self._listens

    @property
    def log(self) -> str:
        """Its log so far."""
        return "".join(self.lines)

    def end(self, number: int | None = None) -> int:
        """Waits for its end, after a signal if one is given, and returns its exit status."""
        if number is not None and self.process.exitcode is None:
            assert self.process.pid is not None
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)
        self.process.join(60)
        for reader in self._readers:
            reader.join(60)
        assert self.process.exitcode is not None, "it does not end"
        return self.process.exitcode


def run_command(*arguments: object, faults: Faults = NO_FAULTS) -> Process:
    """Runs a command to its end."""
    process = Process(*map(str, arguments), faults=faults)
    process.end()
    return process


class ServerProcess(Process):
    """A `pyrometer serve` process, and its client."""

    def __init__(self, folder: Path, *more: str, faults: Faults = NO_FAULTS) -> None:
        self.folder, self.port = folder, free_port()
        listen = f"127.0.0.1:{self.port}"
        super().__init__(
            "serve",
            "--data",
            str(folder),
            "--listen",
            listen,
            *more,
            faults=faults._replace(set={**FAST_CONSTANTS, **faults.set}),
        )
        self.client = httpx.Client(base_url=f"http://{listen}", timeout=30)

    def ready(self) -> dict[str, Any]:
        """The answer of /readyz."""
        answer: dict[str, Any] = self.client.get("/readyz").json()
        return answer

    def kill_now(self) -> None:
        """Kills it without waiting."""
        if self.process.pid is not None and self.process.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)

    def kill(self) -> int:
        """Kills it, like the kernel when memory is short."""
        return self.end(signal.SIGKILL)

    def stop(self) -> int:
        """Stops it like Kubernetes does and returns its exit status."""
        return self.end(signal.SIGTERM)

    def end(self, number: int | None = None) -> int:
        """Waits for its end, after a signal if one is given, and returns its exit status."""
        code = super().end(number)
        self.client.close()
        return code

    def __enter__(self) -> ServerProcess:
        assert self.listens, self.log
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        code = self.stop()
        assert kind is not None or code == 0, self.log


# -- the folder afterwards --------------------------------------------------------------------------------------------


class FolderContents(NamedTuple):
    """The contents of a folder: its facts, its ledger and its problems."""

    rows: dict[str, list[tuple[Any, ...]]]
    ledger: list[tuple[Any, ...]]
    wrong: list[str]

    @property
    def keys(self) -> Counter[Key]:
        """The keys of the rows by which deliveries are counted."""
        found: Counter[Key] = Counter()
        for kind in DELIVERED_KINDS:
            found.update((kind, *row[:3]) for row in self.rows[kind])
        return found


QUERIES = {
    "gpu_sample": "SELECT time_ms, node_uid, slot_index, * EXCLUDE (time_ms, node_uid, slot_index) FROM gpu_sample",
    "step_window": "SELECT time_ms, run, rank, * EXCLUDE (time_ms, run, rank) FROM step_window",
    "metric": "SELECT time_ms, run, rank, * EXCLUDE (time_ms, run, rank) FROM metric",
}


def read_folder(folder: Path, hours: int = 2, start_ms: int = START_MS, kept_days: int = 0) -> FolderContents:
    """Opens a folder like the next process would, and reads all of its rows before and after sealing."""
    now_ms = start_ms + hours * MS_PER_HOUR
    with Store(folder) as store:
        build(store, Settings(), now_ms=now_ms)
        before = _read(store)
        store.seal()
        build(store, Settings(), now_ms=now_ms)
        wrong = [problem.text for problem in problems(store)] + list(closed_month_problems(folder, store.connection))
        after = _read(store)
    if before != after:
        wrong.append("Sealing changed what is read.")
    return FolderContents(*after, wrong)


def _read(store: Store) -> tuple[dict[str, list[tuple[Any, ...]]], list[tuple[Any, ...]]]:
    store.expose_all([*QUERIES, "ledger_row"])
    ask = store.connection.execute
    rows = {kind: sorted(ask(query).fetchall(), key=repr) for kind, query in QUERIES.items()}
    ledger = ask(
        "SELECT minute_ms, node_uid, slot_index, pod_uid, attempt, state, usd_micro_per_hour, sum(ms)::BIGINT "
        "FROM ledger_row GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    return rows, ledger


def compare(found: FolderContents, twin: FolderContents, acknowledged: set[Key], faults: int = 1) -> Counts:
    """The number of rows lost, doubled or different from the twin."""
    keys = found.keys
    return Counts(
        faults=faults,
        acknowledged=len(acknowledged),
        lost=len(acknowledged - set(keys)),
        doubled=sum(count - 1 for count in keys.values()),
        unlike=int(found.rows != twin.rows or found.ledger != twin.ledger),
        wrong=len(found.wrong),
    )


def prepare_folder(folder: Path, hours: int = 2) -> Path:
    """A folder with the objects of the cluster and no deliveries."""
    with Store(folder, create=True) as store:
        store.append(objects(hours))
    return folder


def run_without_faults(folder: Path, load: list[Delivery]) -> FolderContents:
    """The twin: the contents after the same deliveries without a fault."""
    prepare_folder(folder)
    with ServerProcess(folder) as served:
        sender = Sender(load)
        assert sender.send(served.client), sender.answers
    return read_folder(folder)
