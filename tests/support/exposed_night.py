"""A night's records as exporters would have shown them, scrape by scrape, with the labels that Prometheus adds.

The forms are those of dcgm-exporter and kube-state-metrics. `honor_labels` says whose labels win where both have one.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyrometer.model.columns import schema_of
from pyrometer.model.records import Allocation, GpuSample, Node, Owner, Pod
from pyrometer.model.units import SHARE_WHOLE
from pyrometer.store import Store

DCGM = {
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_util_permille", 0.1),
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_active_permille", 0.001),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("graphics_active_permille", 0.001),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_active_permille", 0.001),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_active_permille", 0.001),
    "DCGM_FI_DEV_FB_USED": ("memory_used_mib", 1),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_mhz", 1),
}
OWNED = {"Job": ("kube_job_owner", "job_name"), "ReplicaSet": ("kube_replicaset_owner", "replicaset")}


class Line(NamedTuple):
    """One sample of one series."""

    name: str
    labels: dict[str, str]
    value: float
    time_ms: int

    @property
    def text(self) -> str:
        labels = ",".join(f'{key}="{value}"' for key, value in self.labels.items())
        return f"{self.name}{{{labels}}} {self.value:.15g} {self.time_ms / 1000:.3f}\n"


def newest(store: Store, kind: type, key: str) -> list[Any]:
    schema = schema_of(kind)
    store.expose_all([schema.name])
    rows = store.connection.execute(
        f"SELECT {', '.join(schema.column_names)} FROM {schema.name} "
        f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY time_ms DESC) = 1"
    ).fetchall()
    return [kind(*row) for row in rows]


class NightScrapes:
    """What would have been scraped of a night."""

    def __init__(self, store: Store, from_ms: int, to_ms: int, *, every_ms: int = 30_000, honor_labels: bool) -> None:
        self.store = store
        self.from_ms, self.to_ms, self.every_ms = from_ms, to_ms, every_ms
        self.honor_labels = honor_labels
        self.nodes = {node.node_uid: node for node in newest(store, Node, "node_uid")}
        self.pods = {pod.pod_uid: pod for pod in newest(store, Pod, "pod_uid")}
        self.owners = {owner.object_uid: owner for owner in newest(store, Owner, "object_uid")}
        self.holds = newest(store, Allocation, "pod_uid, node_uid, slot_index, instance, from_ms")

    def lines(self) -> Iterator[Line]:
        """Everything, a series at a time."""
        yield from self.state_metrics()
        yield from self.dcgm()
        yield from self.machines()

    def machines(self) -> Iterator[Line]:
        """node_exporter: two CPUs that are busy a quarter of the time, and a disk that never rests."""
        for node in self.nodes.values():
            labels = {"job": "node-exporter", "instance": f"{node.name}:9100"}
            for number, at_ms in enumerate(range(self.from_ms, self.to_ms, self.every_ms)):
                worked_s = number * self.every_ms / 1000
                for cpu in ("0", "1"):
                    of_cpu = {**labels, "cpu": cpu}
                    yield Line("node_cpu_seconds_total", {**of_cpu, "mode": "idle"}, 0.75 * worked_s, at_ms)
                    yield Line("node_cpu_seconds_total", {**of_cpu, "mode": "user"}, 0.25 * worked_s, at_ms)
                disk = {**labels, "device": "nvme0n1"}
                yield Line("node_disk_io_time_seconds_total", disk, worked_s, at_ms)
                yield Line("node_uname_info", {**labels, "nodename": node.name}, 1, at_ms)

    # -- dcgm-exporter ------------------------------------------------------------------------------------------------

    def dcgm(self) -> Iterator[Line]:
        schema = schema_of(GpuSample)
        self.store.expose_all(["gpu_sample"])
        rows = self.store.connection.execute(
            f"SELECT {', '.join(schema.column_names)} FROM gpu_sample ORDER BY node_uid, slot_index, time_ms"
        ).fetchall()
        users = defaultdict(list)
        for hold in self.holds:
            users[hold.node_uid, hold.slot_index].append(hold)
        for sample in map(GpuSample._make, rows):
            node = self.nodes[sample.node_uid]
            held = [
                self.pods[hold.pod_uid]
                for hold in users[sample.node_uid, sample.slot_index]
                if hold.from_ms <= sample.time_ms < (hold.to_ms or self.to_ms)
            ]
            labels = {
                "gpu": str(sample.slot_index),
                "UUID": f"GPU-{node.name}-{sample.slot_index}",
                "device": f"nvidia{sample.slot_index}",
                "modelName": node.gpu_model or "",
                "Hostname": node.name,
            }
            own = {"pod": held[0].name, "namespace": held[0].namespace, "container": "main"} if held else {}
            target = {"pod": "dcgm-exporter-x7k2p", "namespace": "gpu-operator", "container": "exporter"}
            labels |= self._scraped("dcgm", f"{node.name}:9400", own, target)
            for name, (column, factor) in DCGM.items():
                value = getattr(sample, column)
                if value is not None:
                    yield Line(name, labels, value * factor, sample.time_ms)

    # -- kube-state-metrics -------------------------------------------------------------------------------------------

    def state_metrics(self) -> Iterator[Line]:
        times = range(self.from_ms - self.from_ms % self.every_ms + 7_000, self.to_ms, self.every_ms)
        for node in self.nodes.values():
            labels = self._state({"node": node.name})
            kept = {"node_kubernetes_io_instance_type": node.instance_type, "pool": node.pool}
            named = {f"label_{key}": value for key, value in kept.items() if value}
            for at_ms in times:
                yield Line(
                    "kube_node_status_capacity",
                    {**labels, "resource": "nvidia_com_gpu", "unit": "integer"},
                    node.gpu_count,
                    at_ms,
                )
                yield Line("kube_node_labels", {**labels, **named}, 1, at_ms)
                yield Line("kube_node_created", labels, self.from_ms / 1000 - 86_400, at_ms)
        for pod in self.pods.values():
            for at_ms in times:
                # a pod that has ended is listed for a while, as by controllers
                if (pod.created_ms or 0) <= at_ms < (pod.ended_ms or self.to_ms) + 45_000:
                    yield from self._pod(pod, at_ms)
        for owner in self.owners.values():
            above = self.owners.get(owner.controller_uid or "")
            name, label = OWNED.get(owner.kind, ("", ""))
            if name and above:
                labels = self._state({"namespace": owner.namespace, label: owner.name})
                labels |= {"owner_kind": above.kind, "owner_name": above.name, "owner_is_controller": "true"}
                yield from (Line(name, labels, 1, at_ms) for at_ms in times)

    def _pod(self, pod: Pod, at_ms: int) -> Iterator[Line]:
        node = self.nodes.get(pod.node_uid or "")
        labels = self._state({"namespace": pod.namespace, "pod": pod.name, "uid": pod.pod_uid})
        placed = node is not None and (pod.scheduled_ms or self.to_ms) <= at_ms
        gpus = (pod.gpu_share or 0) / SHARE_WHOLE
        requested = {**labels, "container": "main", "resource": "nvidia_com_gpu", "unit": "integer"}
        yield Line(
            "kube_pod_container_resource_requests",
            {**requested, "node": node.name if node and placed else ""},
            gpus,
            at_ms,
        )
        yield Line("kube_pod_info", {**labels, "node": node.name if node and placed else ""}, 1, at_ms)
        yield Line("kube_pod_created", labels, (pod.created_ms or 0) / 1000, at_ms)
        owner = self._first_owner(pod)
        if owner is not None:
            yield Line(
                "kube_pod_owner",
                {**labels, "owner_kind": owner.kind, "owner_name": owner.name, "owner_is_controller": "true"},
                1,
                at_ms,
            )
        words = json.loads(pod.labels_json or "{}") | {"experiment": self._experiment(pod)}
        kept = {f"label_{re.sub(r'[^a-zA-Z0-9_]', '_', key)}": value for key, value in words.items()}
        yield Line("kube_pod_labels", {**labels, **kept}, 1, at_ms)
        for name, moment in (
            ("kube_pod_status_scheduled_time", pod.scheduled_ms),
            ("kube_pod_container_state_started", pod.started_ms),
            ("kube_pod_completion_time", pod.ended_ms),
        ):
            if moment is not None and moment <= at_ms:
                yield Line(name, labels, moment / 1000, at_ms)
        over = pod.ended_ms is not None and pod.ended_ms <= at_ms
        for phase in ("Pending", "Running", "Succeeded", "Failed"):
            now = pod.phase if over else "Running" if (pod.started_ms or self.to_ms) <= at_ms else "Pending"
            yield Line("kube_pod_status_phase", {**labels, "phase": phase}, float(phase == now), at_ms)

    def _first_owner(self, pod: Pod) -> Owner | None:
        """The owner nearest to the pod: the one that owns no other."""
        above = {owner.controller_uid for owner in self.owners.values()}
        chain = [owner for owner in self.owners.values() if self._root(owner) == pod.workload_uid]
        return next((owner for owner in chain if owner.object_uid not in above), None)

    def _root(self, owner: Owner) -> str:
        while owner.controller_uid in self.owners:
            owner = self.owners[owner.controller_uid]
        return owner.object_uid

    def _experiment(self, pod: Pod) -> str:
        if not hasattr(self, "_experiments"):
            self.store.expose_all(["workload"])
            self._experiments = dict(
                self.store.connection.execute(
                    "SELECT workload_uid, any_value(experiment) FROM workload GROUP BY 1"
                ).fetchall()
            )
        return str(self._experiments.get(pod.workload_uid))

    # -- labels -------------------------------------------------------------------------------------------------------

    def _state(self, own: dict[str, str]) -> dict[str, str]:
        target = {"pod": "kube-state-metrics-0", "namespace": "monitoring", "container": "kube-state-metrics"}
        return self._scraped("kube-state-metrics", "10.0.0.9:8080", own, target)

    def _scraped(self, job: str, instance: str, own: dict[str, str], target: dict[str, str]) -> dict[str, str]:
        """The labels as Prometheus stores them: the exporter's own, renamed where the target has the same."""
        if self.honor_labels:
            return {"job": job, "instance": instance, **target, **own}
        renamed = {f"exported_{key}" if key in target else key: value for key, value in own.items()}
        return {"job": job, "instance": instance, **target, **renamed}
