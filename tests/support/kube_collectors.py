"""Collectors under test, queries to their stores, and jobs for them to observe."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pyrometer.account.build.ledger import build
from pyrometer.collect.kubernetes.api import connect
from pyrometer.model.settings import Settings
from pyrometer.serve.ingest.kubernetes_collector import KubernetesCollector
from pyrometer.store import Store
from tests.support import manifests
from tests.support.kube_server import ApiServer, Kubectl


def now_ms() -> int:
    """The current time in whole seconds, like the API."""
    return time.time_ns() // 1_000_000 // 1_000 * 1_000


@asynccontextmanager
async def collecting(
    server: ApiServer, folder: Path, *, settings: Settings | None = None, port: int | None = None, token: str = ""
) -> AsyncIterator[KubernetesCollector]:
    """A collector that has listed all objects."""
    config = server.kubeconfig(token, port=port) if token else server.kubeconfig(port=port)
    api = connect(environment={"KUBECONFIG": str(config)})
    with Store(folder, create=True) as store:
        collector = KubernetesCollector(store, api, settings or Settings(), asyncio.Lock())
        task = asyncio.create_task(collector.run())
        try:
            await wait_until(lambda: collector.source is not None and collector.source.ready.is_set(), task)
            yield collector
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await api.close()


async def wait_until(ready: Callable[[], bool], task: asyncio.Task[Any] | None = None, timeout_s: float = 60.0) -> None:
    """Waits for an event in another process."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if task is not None and task.done():
            task.result()
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(0.02)


def rows(store: Store, query: str) -> list[tuple[Any, ...]]:
    store.expose_all(["node", "pod", "allocation", "workload", "owner", "event", "ledger_row"])
    return store.connection.execute(query).fetchall()


async def query_rows(collector: KubernetesCollector, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query, run while the collector does not use the store."""
    async with collector.lock:
        return rows(collector.store, query)


async def wait_for_ended(collector: KubernetesCollector, namespace: str, count: int, timeout_s: float = 60.0) -> None:
    """Waits until `count` pods of a namespace have ended in the store."""
    query = f"SELECT count(DISTINCT pod_uid) FROM pod WHERE ended_ms IS NOT NULL AND namespace LIKE '{namespace}%'"
    deadline = time.monotonic() + timeout_s
    while (await query_rows(collector, query))[0][0] < count:
        if time.monotonic() > deadline:
            raise TimeoutError(await query_rows(collector, query))
        await asyncio.sleep(0.05)


async def gpu_seconds(collector: KubernetesCollector, namespace: str) -> dict[str, float]:
    """GPU-seconds of each workload of a namespace, from the ledger."""
    async with collector.lock:
        return ledger_seconds(collector.store, namespace)


def ledger_seconds(store: Store, namespace: str) -> dict[str, float]:
    build(store, Settings(), now_ms=time.time_ns() // 1_000_000 + 3_600_000)
    found = rows(
        store,
        "SELECT kind || '/' || workload.name, sum(ms) / 1000 FROM ledger_row "
        "JOIN (SELECT pod_uid, max_by(workload_uid, time_ms) AS workload_uid FROM pod GROUP BY 1) USING (pod_uid) "
        "JOIN (FROM workload QUALIFY row_number() OVER (PARTITION BY workload_uid ORDER BY time_ms DESC) = 1) workload "
        f"USING (workload_uid) WHERE workload.namespace LIKE '{namespace}%' GROUP BY ALL ORDER BY 1",
    )
    return dict(found)


class Site:
    """Nodes for one test, and jobs on them that run for a while and end."""

    def __init__(self, kubectl: Kubectl, namespace: str, nodes: int = 12) -> None:
        self.kubectl, self.namespace = kubectl, namespace
        self.nodes = [kubectl.create(manifests.node(f"{namespace}-n{n}"))["metadata"]["name"] for n in range(nodes)]
        self.start_ms = now_ms() + 1_000
        self.pods: list[Any] = []
        self._next = 0

    def owner(self, api_version: str, kind: str, name: str, *owners: Any, **more: Any) -> Any:
        namespace = more.pop("namespace", self.namespace)
        thing = manifests.custom(api_version, kind, namespace, name, **more)
        return self.kubectl.create(manifests.with_owners(thing, *owners))

    def pod(self, name: str, *owners: Any, gpus: int = 8, namespace: str | None = None, **more: Any) -> Any:
        """Creates a pod on the next free node. Each node gets one pod."""
        thing = manifests.pod(namespace or self.namespace, name, gpus, **more)
        made = self.kubectl.create(manifests.with_owners(manifests.on_node(thing, self.nodes[self._next]), *owners))
        self._next += 1
        self.kubectl.status(made, manifests.status(self.start_ms, self.start_ms + 1_000))
        self.pods.append(made)
        return made

    def finish(self, seconds: int = 100) -> None:
        """Ends all pods `seconds` after they were scheduled."""
        for one in self.pods:
            self.kubectl.status(
                one, manifests.status(self.start_ms, self.start_ms + 1_000, self.start_ms + seconds * 1_000)
            )


async def wait_for_rows(
    collector: KubernetesCollector, query: str, expected: list[tuple[Any, ...]], timeout_s: float = 30.0
) -> None:
    deadline = time.monotonic() + timeout_s
    while (found := await query_rows(collector, query)) != expected:
        if time.monotonic() > deadline:
            raise AssertionError(found)
        await asyncio.sleep(0.05)
