"""The GPU nodes of one cluster: their records, and the holds of pods on their devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ObservedObject, ms
from pyrometer.identify.gpus import gpu_requests
from pyrometer.identify.gpus.devices import Hold, NodeHolds, SlotDevice
from pyrometer.model.records import Allocation, Node

Records = list[tuple[Any, ...]]


class NodeState:
    """A node as it was last recorded, with its GPUs and the holds on them."""

    def __init__(self, record: Node, gpus_of: gpu_requests.GpuNode) -> None:
        self.record = record
        self.gpus = gpus_of
        self.book = NodeHolds(record.node_uid, gpus_of.gpus)


class ClusterNodes:
    """The GPU nodes of one cluster by name."""

    def __init__(self, cluster: str, since_ms: int) -> None:
        self.cluster = cluster
        self.since_ms = since_ms  # older nodes were not watched before: they begin when they are first seen
        self._nodes: dict[str, NodeState] = {}

    def get(self, name: str) -> NodeState | None:
        """The node of exactly that name."""
        return self._nodes.get(name)

    def uid_of(self, name: str) -> str | None:
        """The UID of a node by its name. Machines may report a longer name than their node has."""
        node = self._nodes.get(name) or self._nodes.get(name.partition(".")[0])
        return node.record.node_uid if node else None

    def present(self) -> dict[str, tuple[str, str]]:
        """The nodes that exist: UID → namespace and name."""
        return {node.record.node_uid: ("", name) for name, node in self._nodes.items()}

    def resume(self, nodes: Iterable[Node], holds: Iterable[Allocation]) -> dict[str, str]:
        """Restores nodes and holds from their newest records. Returns the names of nodes by UID."""
        names = {}
        for node in nodes:
            self._nodes[node.name] = NodeState(node, gpu_requests.GpuNode(node.gpu_count, node.gpu_model, 1, 0, None))
            names[node.node_uid] = node.name
        for hold in holds:
            state = self._nodes.get(names.get(hold.node_uid, ""))
            if state is not None:
                device = SlotDevice(hold.slot_index, hold.instance)
                state.book.resume(
                    Hold(
                        pod_uid=hold.pod_uid,
                        device=device,
                        from_ms=hold.from_ms,
                        to_ms=hold.to_ms,
                        share=hold.share,
                        source=hold.source,
                    )
                )
        return names

    def take(self, seen: ObservedObject) -> Records:
        """The records of a node that has changed or is gone."""
        node: objects.NodeObject = seen.object
        meta = node.metadata
        before = self._nodes.get(meta.name)
        if before is not None and before.record.node_uid != meta.uid and not seen.gone:  # a new machine, an old name
            return [self._end(meta.name, seen.seen_ms), *self.take(seen)]
        if seen.gone:
            return [self._end(meta.name, seen.seen_ms)] if before and before.record.node_uid == meta.uid else []
        has = gpu_requests.node_gpus(node)
        if not has.gpus and before is None:
            return []
        ready = next((c for c in node.status.conditions or () if c.type == "Ready"), None)
        record = self._record(node, has, ready, before)
        if before is None:
            created_ms = ms(meta.creation_timestamp) or 0
            known = created_ms and created_ms >= self.since_ms
            record = record._replace(time_ms=created_ms if known else seen.seen_ms)
            self._nodes[meta.name] = NodeState(record, has)
            return [record]
        before.gpus = has
        before.book.slots = max(before.book.slots, has.gpus)
        if record == before.record._replace(time_ms=0):
            return []
        before.record = record._replace(time_ms=_changed_ms(node, ready, record, before.record, seen.seen_ms))
        return [before.record]

    def _record(
        self,
        node: objects.NodeObject,
        has: gpu_requests.GpuNode,
        ready: objects.Condition | None,
        before: NodeState | None,
    ) -> Node:
        """The node as it is, without a time."""
        meta, labels = node.metadata, node.metadata.labels or {}
        return Node(
            time_ms=0,
            cluster=self.cluster,
            node_uid=meta.uid,
            name=meta.name,
            gpu_count=has.gpus,
            gpu_model=has.model or (before.record.gpu_model if before else None),
            pool=gpu_requests.first_label(labels, gpu_requests.POOL_LABELS),
            instance_type=gpu_requests.first_label(labels, gpu_requests.INSTANCE_LABELS),
            purchase=gpu_requests.purchase_of(labels),
            ready=ready is None or ready.status == "True",
            schedulable=not node.spec.unschedulable,
        )

    def _end(self, name: str, at_ms: int) -> Node:
        record = self._nodes.pop(name).record
        return record._replace(time_ms=max(at_ms, record.time_ms + 1), present=False)

    def forget(self, before_ms: int) -> None:
        """Forgets pods that ended before a time: their holds cannot change any more."""
        for node in self._nodes.values():
            node.book.forget(before_ms)


def _changed_ms(
    node: objects.NodeObject, ready: objects.Condition | None, now: Node, before: Node, seen_ms: int
) -> int:
    """The time when a node changed, according to its object if possible."""
    at_ms: int | None = None
    if now.ready != before.ready and ready is not None:
        at_ms = ms(ready.last_transition_time)
    elif now.schedulable != before.schedulable and not now.schedulable:
        added = [ms(taint.time_added) for taint in node.spec.taints or [] if taint.key.endswith("/unschedulable")]
        at_ms = next((t for t in added if t is not None), None)
    return at_ms if at_ms is not None and at_ms > before.time_ms else max(seen_ms, before.time_ms + 1)
