"""Follows a Kubernetes cluster into a store. After a restart it continues where it was."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import msgspec

from pyrometer.collect.kubernetes.api import Api, ApiError
from pyrometer.collect.kubernetes.objects import Namespace
from pyrometer.collect.kubernetes.source import KubernetesSource
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.model import events
from pyrometer.model.records import Allocation, Node, Owner, Pod, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_DAY
from pyrometer.serve.disk import UNSTORED, Disk
from pyrometer.serve.ingest.spooled_bodies import append_what_fits
from pyrometer.serve.runtime import run_to_end
from pyrometer.store import Store
from pyrometer.store.catalog import first_row
from pyrometer.store.reader import newest_records

KEEP_ENDED_MS = 7 * MS_PER_DAY  # pods that ended may still be listed


class StoredCluster(NamedTuple):
    """The state of a cluster in a data folder."""

    since_ms: int | None  # when it was first watched
    last_live_ms: int | None
    nodes: list[Node]
    pods: list[Pod]
    holds: list[Allocation]
    workloads: list[Workload]
    owners: list[Owner]


class KubernetesCollector:
    """Follows one cluster into one store. The lock is held while the store is used."""

    def __init__(
        self, store: Store, api: Api, settings: Settings, lock: asyncio.Lock, disk: Disk | None = None
    ) -> None:
        self.store = store
        self.api = api
        self.settings = settings
        self.lock = lock
        self.source: KubernetesSource | None = None
        self.cluster: Cluster | None = None
        self.stored = 0
        self._disk = disk or Disk()

    async def run(self) -> None:
        """Stores changes until it is cancelled."""
        name = self.settings.cluster or await cluster_name(self.api)
        now_ms = time.time_ns() // 1_000_000
        async with self.lock:
            before = await run_to_end(stored_cluster, self.store, name, now_ms)
        since_ms = before.since_ms or now_ms
        settled_ms = since_ms if before.last_live_ms is None else before.last_live_ms - KEEP_ENDED_MS
        cluster = Cluster(name, self.settings, since_ms=since_ms, settled_ms=max(since_ms, settled_ms))
        cluster.resume(before.nodes, before.pods, before.holds, before.workloads, before.owners)
        self.cluster = cluster
        self.source = KubernetesSource(
            self.api,
            cluster,
            cluster=name,
            always=cluster.followed_kinds(),
            last_live_ms=before.last_live_ms,
            known=cluster.known(),
        )
        async for delivery in self.source.deliveries():
            async with self.lock:
                await run_to_end(self._store, list(delivery.records))

    def node_uid_of(self, name: str) -> str | None:
        """The UID of the node with this name."""
        return self.cluster.node_uid_of(name) if self.cluster else None

    def waiting_for(self) -> list[str]:
        """What has not been read yet of what existed at the start."""
        if self.source is None:
            return ["the Kubernetes API"]
        if self.source.ready.is_set():
            return []
        unsynced = [watch for watch in self.source.watches.values() if not watch.synced.is_set()]
        named = [f"{watch.resource.name}: {watch.trouble or 'the first list'}" for watch in unsynced]
        return named or [self.source.trouble or "the first list"]

    def _store(self, records: list[tuple[Any, ...]]) -> None:
        append_what_fits(self.store, records)
        self.stored += len(records)
        self._disk.worked(UNSTORED)


async def cluster_name(api: Api) -> str:
    """The name in the kubeconfig. Inside of the cluster, one from the unique ID of `kube-system`."""
    if api.cluster != "default":
        return api.cluster
    try:
        found = msgspec.json.decode(await api.get("/api/v1/namespaces/kube-system"), type=Namespace)
    except ApiError:
        return api.cluster
    return f"cluster-{found.metadata.uid[:8]}" if found.metadata.uid else api.cluster


def stored_cluster(store: Store, cluster: str, now_ms: int) -> StoredCluster:
    """The newest_records records of everything in a cluster that may still exist."""
    store.expose_all(["node", "pod", "allocation", "workload", "owner", "event"])
    since_ms = _one(store, "SELECT min(time_ms) FROM event WHERE kind = ? AND cluster = ?", events.WATCHED, cluster)
    live_ms = _one(store, "SELECT max(time_ms) FROM event WHERE kind = ? AND cluster = ?", events.WATCHED, cluster)
    nodes = newest_records(store, Node, "node_uid", "cluster = ?", [cluster], "present")
    pods = newest_records(
        store, Pod, "pod_uid", "cluster = ?", [cluster], f"coalesce(ended_ms, {now_ms}) > {now_ms - KEEP_ENDED_MS}"
    )
    store.connection.execute(
        "CREATE OR REPLACE TEMP TABLE remembered_pod AS SELECT unnest(?::VARCHAR[]) AS pod_uid",
        [[pod.pod_uid for pod in pods]],
    )
    holds = newest_records(
        store,
        Allocation,
        "pod_uid, node_uid, slot_index, instance, from_ms",
        "pod_uid IN (SELECT pod_uid FROM remembered_pod)",
        [],
        "to_ms IS NULL OR to_ms > from_ms",
    )
    workloads = newest_records(store, Workload, "workload_uid", "cluster = ?", [cluster], "true")
    owners = newest_records(store, Owner, "object_uid", "cluster = ?", [cluster], "true")
    return StoredCluster(
        since_ms=since_ms, last_live_ms=live_ms, nodes=nodes, pods=pods, holds=holds, workloads=workloads, owners=owners
    )


def _one(store: Store, query: str, *values: str) -> int | None:
    row = first_row(store.connection.execute(query, list(values)))
    return row[0] if row else None
