"""Failures between a collector and its cluster: nothing is lost, or the gap is recorded."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support import manifests
from tests.support.effort import EFFORT, TEST_ALL_EFFORT
from tests.support.kube_collectors import (
    collecting,
    gpu_seconds,
    now_ms,
    query_rows,
    rows,
    wait_for_ended,
    wait_for_rows,
    wait_until,
)
from tests.support.kube_server import ApiServer, Kubectl, free_port

pytestmark = pytest.mark.heavy

NODES, GPUS, WAVE_S, RUN_S = 40, 8, 20, 15
WAVES = 16 if EFFORT > TEST_ALL_EFFORT else 4  # of 320 pods; PYROMETER_EXAMPLES=3 makes them five thousand
JOB = {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "m", "image": "x"}]}}}


class Wire:
    """A connection between a client and a server that can be cut."""

    def __init__(self, to_port: int) -> None:
        self.to_port, self.port = to_port, free_port()
        self.cuts = 0
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Breaks every connection at once, in the middle of its traffic."""
        self.cuts += 1
        for writer in list(self._open):
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.to_port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        await asyncio.gather(self._carry(reader, back), self._carry(there, writer), return_exceptions=True)
        self._open -= {writer, back}

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.transport.abort()


def test_watch_survives_compaction_and_cut_connections_with_thousands_of_pods(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    """The ledger has the full history, although etcd compacts it and the connection breaks four times."""
    nodes = [kubectl.create(manifests.node(f"{namespace}-n{n}"))["metadata"]["name"] for n in range(NODES)]
    jobs = [
        kubectl.create(manifests.custom("batch/v1", "Job", namespace, f"job-{number}", spec=JOB))
        for number in range(10)
    ]
    begin_ms = now_ms() + 2_000
    expected: Counter[str] = Counter()

    def live(wave: int, place: int) -> str:
        """One pod is created, ends, and is deleted."""
        job = jobs[(wave + place) % len(jobs)]
        from_ms = begin_ms + wave * WAVE_S * 1_000
        to_ms = from_ms + (1 + (place * 7 + wave) % RUN_S) * 1_000
        pod = manifests.with_owners(manifests.pod(namespace, f"p-{wave}-{place}", 1), job)
        made = kubectl.create(manifests.on_node(pod, nodes[place // GPUS]))
        kubectl.status(made, manifests.status(from_ms, from_ms, to_ms))
        kubectl.delete(made)
        return f"Job/{job['metadata']['name']}", (to_ms - from_ms) // 1_000

    async def scenario() -> None:
        async with (
            Wire(api_server.port) as wire,
            collecting(api_server, tmp_path / "data", port=wire.port) as collector,
        ):
            with ThreadPoolExecutor(6) as threads:
                for wave in range(WAVES):
                    loop = asyncio.get_running_loop()
                    lives = [loop.run_in_executor(threads, live, wave, place) for place in range(NODES * GPUS)]
                    if wave % (WAVES // 4) == WAVES // 8:
                        api_server.compact()
                        wire.cut()
                    for name, seconds in await asyncio.gather(*lives):
                        expected[name] += seconds
            count = WAVES * NODES * GPUS
            await wait_for_ended(collector, namespace, count, timeout_s=120)
            assert wire.cuts == 4
            assert await gpu_seconds(collector, namespace) == expected
            assert collector.source is not None
            assert collector.source.watches["", "Pod"].listings == 1  # it resumed where it was, every time
            gaps = await query_rows(collector, "SELECT count(*) FROM event WHERE kind = 'watch_gap'")
            assert gaps == [(0,)]

    asyncio.run(scenario())


class Two:
    """Two pods of a Job on a node of eight."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl, self.namespace = kubectl, namespace
        self.node = kubectl.create(manifests.node(f"{namespace}-n0"))
        self.job = kubectl.create(manifests.custom("batch/v1", "Job", namespace, "job", spec=JOB))
        self.start_ms = now_ms() - 120_000

    def pod(self, name: str, from_ms: int | None = None) -> Any:
        pod = manifests.with_owners(manifests.pod(self.namespace, name, 2), self.job)
        made = self.kubectl.create(manifests.on_node(pod, self.node["metadata"]["name"]))
        at_ms = self.start_ms if from_ms is None else from_ms
        return self.kubectl.status(made, manifests.status(at_ms, at_ms))


def test_restart_reads_existing_objects_again(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    two = Two(kubectl, namespace)
    ids = f"SELECT name, max(ended_ms) FROM pod WHERE namespace = '{namespace}' GROUP BY name ORDER BY name"

    async def before() -> None:
        async with collecting(api_server, tmp_path / "data") as collector:
            two.stays, two.ends = two.pod("stays"), two.pod("ends")
            await wait_for_rows(collector, ids, [("ends", None), ("stays", None)])

    async def after() -> None:
        async with collecting(api_server, tmp_path / "data") as collector:
            await wait_for_rows(collector, ids, [("comes", None), ("ends", two.ended_ms), ("stays", None)])
            attempts = f"SELECT DISTINCT attempt FROM pod WHERE namespace = '{namespace}'"
            assert await query_rows(collector, attempts) == [(1,)]  # it is one life of one job

    asyncio.run(before())
    two.ended_ms = now_ms()
    kubectl.status(two.ends, manifests.status(two.start_ms, two.start_ms, two.ended_ms))  # no collector is running
    two.pod("comes", now_ms())
    asyncio.run(after())


def test_pod_deleted_during_downtime_pays_until_it_was_last_seen(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    two = Two(kubectl, namespace)
    ids = f"SELECT name, max(ended_ms) IS NOT NULL FROM pod WHERE namespace = '{namespace}' GROUP BY name ORDER BY name"

    async def before() -> None:
        async with collecting(api_server, tmp_path / "data") as collector:
            two.stays, two.goes = two.pod("stays"), two.pod("goes")
            await wait_for_rows(collector, ids, [("goes", False), ("stays", False)])

    async def after() -> None:
        async with collecting(api_server, tmp_path / "data") as collector:
            await wait_for_rows(collector, ids, [("goes", True), ("stays", False)])

    asyncio.run(before())
    kubectl.delete(two.goes)
    asyncio.run(after())
    with Store(tmp_path / "data") as store:
        (gap,) = rows(store, "SELECT time_ms, time_ms + duration_ms FROM event WHERE kind = 'watch_gap'")
        (gone,) = rows(
            store,
            f"SELECT ended_ms, reason FROM pod WHERE name = 'goes' AND namespace = '{namespace}' "
            "AND ended_ms IS NOT NULL",
        )
        assert gone == (gap[0], "Vanished")
        build(store, Settings(), now_ms=gap[1] + 3_600_000)
        uid = two.node["metadata"]["uid"]
        unseen = rows(
            store,
            f"SELECT sum(ms) FROM ledger_row WHERE node_uid = '{uid}' AND pod_uid IS NULL AND state = 'unobserved'",
        )
        assert unseen == [(6 * (gap[1] - gap[0]),)]  # all but the two GPUs of the pod that stays


def test_collector_resumes_after_an_api_server_outage(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    """After its restart everything is listed again, and deleted objects are detected."""
    two = Two(kubectl, namespace)
    ids = f"SELECT name, max(ended_ms) FROM pod WHERE namespace = '{namespace}' GROUP BY name ORDER BY name"

    async def scenario() -> None:
        async with collecting(api_server, tmp_path / "data") as collector:
            pod = two.pod("ends")
            await wait_for_rows(collector, ids, [("ends", None)])
            api_server.stop()
            await wait_until(lambda: collector.source.watches["", "Pod"].trouble is not None)
            api_server.compact()
            api_server.start()
            kubectl.client.close()
            with Kubectl(api_server) as fresh:
                at_ms = now_ms()
                fresh.status(pod, manifests.status(two.start_ms, two.start_ms, at_ms))
                await wait_for_rows(collector, ids, [("ends", at_ms)])

    asyncio.run(scenario())


def test_lists_are_read_in_pages(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrometer.collect.kubernetes.watch.PAGE", 2)
    names = sorted(kubectl.create(manifests.node(f"{namespace}-n{n}"))["metadata"]["name"] for n in range(7))

    async def scenario() -> None:
        async with collecting(api_server, tmp_path / "data") as collector:
            found = await query_rows(collector, f"SELECT name FROM node WHERE name LIKE '{namespace}-%' ORDER BY name")
            assert [name for (name,) in found] == names

    asyncio.run(scenario())
