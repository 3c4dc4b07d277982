"""Reads the history of a cluster from Prometheus: GPU allocations and telemetry of past days."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from pyrometer.collect.gpu import labeled_objects
from pyrometer.collect.gpu.dcgm import Dcgm, slot_address_of
from pyrometer.collect.gpu.device import DeviceUse, SlotAddress, device_use
from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import Meta, ObservedObject, ms
from pyrometer.collect.nodes.node_exporter import NodeExporters
from pyrometer.collect.prometheus import node_series
from pyrometer.collect.prometheus.api import Prometheus
from pyrometer.collect.prometheus.chunks import read_chunks
from pyrometer.collect.prometheus.follow import GPU_METRICS, SlotAddresses
from pyrometer.collect.prometheus.kube_state import NameLookup, history, label_keys
from pyrometer.collect.source import Delivery, SourceError
from pyrometer.model import events
from pyrometer.model.records import Event, NodeSample
from pyrometer.model.units import MS_PER_MINUTE

# Enough metrics to find every device and the pods on it, without reading all metrics.
DEVICES = (
    '{__name__=~"DCGM_FI_DEV_(GPU_TEMP|GPU_TEMP_CELSIUS|FB_USED|FB_USED_BYTES)|'
    'DCGM_FI_PROF_GR_ENGINE_(ACTIVE|UTIL_RATIO)"}'
)
OBJECTS_SHARE = 0.2  # part of the progress
LINGER_MS = 5 * MS_PER_MINUTE  # a label may come and go for a scrape or two


class HistoryTranslator(Protocol):
    """Turns observed objects into records."""

    def take(self, seen: ObservedObject) -> list[tuple[Any, ...]]:
        """Returns the records of an observed object."""
        ...

    def learn(self, uses: Iterable[DeviceUse], at_ms: int) -> list[tuple[Any, ...]]:
        """Learns which pods use which devices."""
        ...

    def keys(self) -> Iterable[str]:
        """The label keys that it uses."""
        ...

    def group_of(self, kind: str) -> str:
        """The API group of a kind of owners."""
        ...


class KnownObjects(NamedTuple):
    """Current objects from the Kubernetes API, if it is available: nodes and existing owners."""

    nodes: Sequence[objects.NodeObject] = ()
    owner_of: Callable[[str, str, str], Awaitable[objects.OwnerObject | None]] | None = None


class PrometheusSource:
    """Reads a past time range, from `from_ms` to `to_ms`, except for the ranges in `read`."""

    def __init__(
        self,
        api: Prometheus,
        translator: HistoryTranslator,
        *,
        cluster: str,
        from_ms: int,
        to_ms: int,
        near_idle_power_w: Callable[[str | None], int],
        known: KnownObjects | None = None,
        read: Sequence[tuple[int, int]] = (),
        by_labels: bool = True,
    ) -> None:
        self.api = api
        self.cluster = cluster
        self.from_ms, self.to_ms = from_ms, to_ms
        self.pods = 0
        self.gpus = 0
        self._translator = translator
        self._known = known or KnownObjects()
        self._by_labels = by_labels  # use labels of telemetry if there is no other source of pods
        self._missing = missing(from_ms, to_ms, read)
        self._dcgm = Dcgm(self._node_uid, near_idle_power_w)
        # UIDs by name and address
        self._nodes = {node.metadata.name: node.metadata.uid for node in self._known.nodes}
        self._slot_addresses = SlotAddresses()
        self._gpu_nodes: set[str] = set()
        self._addresses: dict[str, str] = {}  # names of nodes
        self._interval_ms = MS_PER_MINUTE

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """Yields objects first, then telemetry in chunks."""
        addresses = await self._devices()
        self.gpus = len({(address.hosts[0], address.slot_index) for address in addresses})
        by_state_metrics = await self._objects(addresses)
        yield Delivery(by_state_metrics, OBJECTS_SHARE)
        uses: dict[DeviceUse, tuple[int, int]] = {}
        if not self.pods and not self._missing and self._by_labels:
            self._missing = [(self.from_ms, self.to_ms)]  # only telemetry has the users of devices
        whole_ms = sum(to_ms - from_ms for from_ms, to_ms in self._missing)
        done_ms = 0
        for from_ms, to_ms in self._missing:
            async for chunk in read_chunks(self.api, GPU_METRICS, from_ms, to_ms):
                taken = self._dcgm.take_series(list(self._slot_addresses.measured(chunk.series)))
                for use, (first_ms, last_ms) in taken.uses.items():
                    before = uses.get(use, (first_ms, last_ms))
                    uses[use] = min(before[0], first_ms), max(before[1], last_ms)
                part = (done_ms + chunk.to_ms - from_ms) / whole_ms
                yield Delivery(taken.records, OBJECTS_SHARE + (1 - OBJECTS_SHARE) * part, (chunk.from_ms, chunk.to_ms))
            done_ms += to_ms - from_ms
        async for rows in self._machines(addresses):
            yield Delivery(rows, 1.0)
        if not self.pods and uses and self._by_labels:
            self.pods = len({(use.namespace, use.pod) for use in uses})
            yield Delivery(self._from_labels(uses), 1.0)
        if not self.gpus and not self.pods:
            raise SourceError(
                f"{self.api.url} has no GPU metrics in that time range: neither those of dcgm-exporter (DCGM_FI_…) "
                "nor of kube-state-metrics (kube_pod_container_resource_requests). Check the URL and the time range."
            )
        yield Delivery([Event(time_ms=self.to_ms, kind=events.WATCHED, cluster=self.cluster)], 1.0)

    def go_on(self, from_ms: int, to_ms: int, read: Sequence[tuple[int, int]]) -> None:
        """Sets another time range of the same cluster. The deliveries start again."""
        self.from_ms, self.to_ms = from_ms, to_ms
        self.pods = self.gpus = 0
        self._missing = missing(from_ms, to_ms, read)

    # -- objects ------------------------------------------------------------------------------------------------------

    async def _devices(self) -> list[SlotAddress]:
        found = await self.api.labels(DEVICES, self.from_ms, self.to_ms)
        return [address for labels in found if (address := slot_address_of(labels)) is not None]

    async def _objects(self, addresses: list[SlotAddress]) -> list[tuple[Any, ...]]:
        models = {host: address.gpu_model for address in addresses if address.gpu_model for host in address.hosts}
        names = NameLookup(label_keys(self._translator.keys()), self._named_node, models.get, self._owner_of)
        past = await history(self.api, self.cluster, self.from_ms, self.to_ms, names)
        self.pods = past.pods
        self._interval_ms, self._addresses = past.interval_ms, past.addresses
        self._gpu_nodes = {
            seen.object.metadata.name for seen in past.seen if isinstance(seen.object, objects.NodeObject)
        }
        for address, name in past.addresses.items():
            self._nodes.setdefault(address, self._named_node(name))
        records: list[tuple[Any, ...]] = list(past.gaps)
        if not any(isinstance(seen.object, objects.NodeObject) for seen in past.seen):
            for node in self._known.nodes or labeled_objects.machines(addresses, self._nodes):
                created_ms = ms(node.metadata.creation_timestamp) or 0
                records += self._translator.take(ObservedObject(node, max(self.from_ms, created_ms)))
        if past.pods:
            records += self._translator.learn(self._uses(addresses), self.from_ms)
        for seen in past.seen:
            records += self._translator.take(seen)
        return records

    async def _machines(self, addresses: list[SlotAddress]) -> AsyncIterator[list[NodeSample]]:
        """Yields rows of machines with node_exporter."""
        if not self._missing:
            return
        exporters = NodeExporters(self._node_uid)
        names = {address.hosts[0] for address in addresses} | self._gpu_nodes
        names |= {address for address, name in self._addresses.items() if name in names}
        async for rows in node_series.load(self.api, exporters, names, self.from_ms, self.to_ms, self._interval_ms):
            yield list(rows)
        yield exporters.rest()

    def _uses(self, addresses: list[SlotAddress]) -> Iterator[DeviceUse]:
        for address in addresses:
            if address.of_pod:
                yield device_use(self._node_uid_of(address), address)

    def _named_node(self, name: str) -> str:
        return self._nodes.setdefault(name, f"host/{name}")

    def _node_uid(self, host: str) -> str | None:
        return self._nodes.get(host) or self._nodes.get(host.partition(".")[0])

    def _node_uid_of(self, address: SlotAddress) -> str:
        found = (self._node_uid(host) for host in address.hosts)
        return next((uid for uid in found if uid), f"host/{address.hosts[0]}")

    async def _owner_of(self, kind: str, namespace: str, name: str) -> objects.OwnerObject:
        """An owner from the API or, if it no longer exists, from its pods."""
        if self._known.owner_of is not None:
            found = await self._known.owner_of(kind, namespace, name)
            if found is not None:
                return found
        group = self._translator.group_of(kind)
        uid = f"{self.cluster}/{namespace}/{kind}/{name}"
        return objects.OwnerObject(
            Meta(name=name, uid=uid, namespace=namespace), f"{group}/v1" if group else "v1", kind
        )

    # -- clusters with telemetry only ---------------------------------------------------------------------------------

    def _from_labels(self, uses: dict[DeviceUse, tuple[int, int]]) -> list[tuple[Any, ...]]:
        """Records of pods that appear only in device labels. Their ends are late by minutes."""
        names = {uid: name for name, uid in self._nodes.items()}
        seen = list(labeled_objects.pods(self.cluster, uses, names, self.to_ms - LINGER_MS))
        records = self._translator.learn(uses, self.from_ms)
        for one in sorted(seen, key=lambda s: (s.seen_ms, not s.gone)):
            records += self._translator.take(one)
        return records


def missing(from_ms: int, to_ms: int, read: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of a time range that have not been read yet."""
    gaps, at_ms = [], from_ms
    for start_ms, end_ms in sorted(read):
        if start_ms > at_ms:
            gaps.append((at_ms, min(start_ms, to_ms)))
        at_ms = max(at_ms, end_ms)
    gaps.append((at_ms, to_ms))
    return [(start_ms, end_ms) for start_ms, end_ms in gaps if start_ms < end_ms]
