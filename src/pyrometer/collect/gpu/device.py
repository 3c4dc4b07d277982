"""A GPU in telemetry of any vendor and exporter: its address, and the pod that uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pyrometer.model.records import WHOLE_DEVICE


@dataclass(frozen=True, slots=True, eq=False)  # one per block of labels: compared by identity, which is fast
class SlotAddress:
    """The device that the labels of a series name, and its user."""

    hosts: tuple[str, ...]  # names of its machine, the best one first
    slot_index: int
    instance: int = WHOLE_DEVICE
    uuid: str | None = None
    gpu_model: str | None = None
    profile: str | None = None  # of the MIG instance: 1g.10gb
    namespace: str | None = None
    pod: str | None = None
    pod_uid: str | None = None
    claim: str | None = None  # the resource claim through which the pod has the device (DRA)

    @property
    def of_pod(self) -> bool:
        """Whether the series is about the use of the device by a pod, and not about the device itself."""
        return self.pod is not None or self.claim is not None


class DeviceUse(NamedTuple):
    """The user of a device in an exporter's labels: late by minutes, and absent while the kubelet does not answer."""

    node_uid: str
    slot_index: int
    instance: int
    uuid: str | None
    gpu_model: str | None
    profile: str | None
    namespace: str | None
    pod: str | None
    pod_uid: str | None
    claim: str | None


class GpuBatch(NamedTuple):
    """Records to store, and the first and last time at which each use of a device was seen."""

    records: list[tuple[Any, ...]]
    uses: dict[DeviceUse, tuple[int, int]]


def device_use(node_uid: str, address: SlotAddress) -> DeviceUse:
    """The use of a device on a node that is known."""
    return DeviceUse(
        node_uid=node_uid,
        slot_index=address.slot_index,
        instance=address.instance,
        uuid=address.uuid,
        gpu_model=address.gpu_model,
        profile=address.profile,
        namespace=address.namespace,
        pod=address.pod,
        pod_uid=address.pod_uid,
        claim=address.claim,
    )


def host_uid(host: str) -> str:
    """The node UID of a machine that no source has described."""
    return f"host/{host}"
