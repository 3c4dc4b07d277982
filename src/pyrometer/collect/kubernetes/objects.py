"""The fields of Kubernetes objects that Pyrometer reads. Decoding skips all others.

Any field may be absent, because the API writes an empty list as `null`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

StringMap = dict[str, str]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]  # like in the API


class _Object(Struct, rename="camel"):
    """The common base, which sets how objects are decoded."""


class Reference(_Object):
    """A reference to an owner."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False

    @property
    def group(self) -> str:
        """The API group, without the version; empty for the core."""
        return self.api_version.rpartition("/")[0]


class Meta(_Object):
    """The metadata of an object."""

    name: str = ""
    generate_name: str = ""
    uid: str = ""
    namespace: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: StringMap | None = None
    annotations: StringMap | None = None
    owner_references: list[Reference] | None = None

    @property
    def controller(self) -> Reference | None:
        """The owner that is the controller of the object, if any."""
        return next((owner for owner in self.owner_references or () if owner.controller), None)


class OwnerObject(_Object):
    """Any object above a pod in the chain of owners."""

    metadata: Meta
    api_version: str = ""
    kind: str = ""
    spec: Any = None
    status: Any = None
    gang_pods: int | None = None  # not in the API: the number of pods that a gang needs to start

    @property
    def group(self) -> str:
        """The API group, without the version."""
        return self.api_version.rpartition("/")[0]


class Condition(_Object):
    """One of an object's conditions."""

    type: str
    status: str
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class Resources(_Object):
    """The resources that a container requests."""

    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class Variable(_Object):
    """An environment variable. One with a `valueFrom` has no value here."""

    name: str
    value: str = ""


class Port(_Object):
    """A declared port of a container."""

    name: str = ""
    container_port: Int32 = 0


class ContainerObject(_Object):
    """A container of a pod."""

    name: str = ""
    resources: Resources | None = None
    env: list[Variable] | None = None
    ports: list[Port] | None = None
    restart_policy: str = ""  # "Always" makes an init container a sidecar


class SchedulingGroup(_Object):
    """The gang of a pod (Kubernetes 1.36 and later)."""

    pod_group_name: str = ""


class PodResourceClaim(_Object):
    """A device claim (DRA) that a pod names."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(_Object):
    """The desired state of a pod."""

    node_name: str = ""
    containers: list[ContainerObject] | None = None
    init_containers: list[ContainerObject] | None = None
    resource_claims: list[PodResourceClaim] | None = None
    scheduling_group: SchedulingGroup | None = None


class Waiting(_Object):
    """Why a container is not running yet."""

    reason: str = ""
    message: str = ""


class Running(_Object):
    """When a running container started."""

    started_at: datetime | None = None


class Terminated(_Object):
    """How a container ended."""

    exit_code: Int32 = 0
    signal: Int32 = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerState(_Object):
    """The state of a container: one of three."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Object):
    """The state of a container, and its last termination."""

    name: str = ""
    restart_count: Int32 = 0
    state: ContainerState = field(default_factory=ContainerState)
    last_state: ContainerState = field(default_factory=ContainerState)


class ClaimStatus(_Object):
    """The claim that was created for an entry of a pod's `resourceClaims`."""

    name: str
    resource_claim_name: str | None = None


class PodStatus(_Object):
    """The actual state of a pod."""

    phase: str = "Unknown"
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    start_time: datetime | None = None
    pod_ip: str = field(name="podIP", default="")
    container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[ClaimStatus] | None = None


class PodObject(_Object):
    """A pod."""

    metadata: Meta
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)


class Taint(_Object):
    """A taint of a node."""

    key: str
    effect: str = ""
    value: str = ""
    time_added: datetime | None = None


class NodeSpec(_Object):
    """The desired state of a node."""

    unschedulable: bool = False
    taints: list[Taint] | None = None
    provider_id: str = field(name="providerID", default="")


class NodeStatus(_Object):
    """The actual state of a node."""

    capacity: dict[str, str | int] | None = None
    allocatable: dict[str, str | int] | None = None
    conditions: list[Condition] | None = None


class NodeObject(_Object):
    """A node."""

    metadata: Meta
    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)


class Namespace(_Object):
    """A namespace. Its labels may name its team."""

    metadata: Meta


class EventTarget(_Object):
    """The object that an event is about."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""


class EventSeries(_Object):
    """The number of repetitions of an event, and the last one."""

    count: Int32 = 1
    last_observed_time: datetime | None = None


class EventObject(_Object):
    """An event of a component of the cluster (core/v1)."""

    metadata: Meta
    involved_object: EventTarget = field(default_factory=EventTarget)
    reason: str = ""
    message: str = ""
    type: str = ""
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: EventSeries | None = None


class AllocatedDevice(_Object):
    """A device that is allocated to a claim."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    request: str = ""


class Devices(_Object):
    """The devices of a claim."""

    results: list[AllocatedDevice] | None = None


class ClaimAllocation(_Object):
    """The allocation of a claim."""

    devices: Devices = field(default_factory=Devices)


class Consumer(_Object):
    """A user of a claim."""

    name: str = ""
    uid: str = ""
    resource: str = ""


class ResourceClaimStatus(_Object):
    """The status of a claim."""

    allocation: ClaimAllocation | None = None
    reserved_for: list[Consumer] | None = None


class ResourceClaim(_Object):
    """A claim on devices (DRA)."""

    metadata: Meta
    status: ResourceClaimStatus = field(default_factory=ResourceClaimStatus)


class PodSet(_Object):
    """Pods of one kind that a queued workload needs."""

    name: str = ""
    count: Int32 = 1
    template: Any = None


class QueuedSpec(_Object):
    """The requirements of a queued workload."""

    queue_name: str = ""
    pod_sets: list[PodSet] | None = None


class QueuedStatus(_Object):
    """The progress of a queued workload."""

    conditions: list[Condition] | None = None


class QueuedWorkload(_Object):
    """Kueue's Workload: a job in a queue."""

    metadata: Meta
    spec: QueuedSpec = field(default_factory=QueuedSpec)
    status: QueuedStatus = field(default_factory=QueuedStatus)


class ListMeta(_Object):
    """The resource version of a list, and the token for its next page."""

    resource_version: str = ""
    continue_: str = field(name="continue", default="")
    remaining_item_count: int | UnsetType = UNSET


class Listing(_Object):
    """One page of a list. Its items are decoded one by one."""

    metadata: ListMeta = field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


class WatchEvent(_Object):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Status(_Object):
    """The body of an error response."""

    message: str = ""
    reason: str = ""
    code: int = 0


class Bookmark(_Object):
    """The progress of a watch."""

    metadata: Meta


class ObservedObject(NamedTuple):
    """An object that a watch observed, or its deletion. For a vanished object, `seen_ms` is when it last existed."""

    object: Any
    seen_ms: int
    gone: bool = False
    vanished: bool = False  # its deletion was not observed: it was missing from a new list
    chain: tuple[OwnerObject, ...] = ()  # its owners, the nearest first


def ms(moment: datetime | None) -> int | None:
    """Converts a time of the API (seconds or, for some events, microseconds) to milliseconds."""
    if moment is None:
        return None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
